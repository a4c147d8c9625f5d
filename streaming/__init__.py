"""What streams, mostly by Spark: streaming queries, tasks on executors, DataFrames, and the cleaner, which needs no Spark.

```
 source ──► append/query    foreachBatch: every micro-batch is one Delta commit       append/sources, append/kafka_topics
 ticker ──► cleaning/       foreachBatch on a ticker, or a thread: rounds of cleaning, retention, upkeep
 log    ──► reading/        DataFrames, tail, sinks, what drives the steps of tables
 events, metrics            what all of them report
 planned_source             a Spark streaming source whose planning is Python
 cluster                    tasks on the executors of a session
```

`lastword.storage` below holds the tables; nothing here opens a file.
"""
