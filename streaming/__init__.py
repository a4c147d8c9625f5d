"""Everything that is Spark: streaming queries, tasks on executors, DataFrames.

```
 source ──► append/query    foreachBatch: every micro-batch is one Delta commit       append/sources, append/kafka_topics
 ticker ──► cleaning/       foreachBatch on a ticker: rounds of cleaning, retention, upkeep
 log    ──► reading/        DataFrames, tail, sinks, what drives the steps of tables
 events, metrics            what all of them report
 planned_source             a Spark streaming source whose planning is Python
```

`lastword.storage` below holds the tables; nothing here opens a file.
"""
