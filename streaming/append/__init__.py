"""Append queries: sources as input rows, and the foreachBatch function that appends them exactly once.

```
 sources            what a source brings, as input rows      source_settings   what `[[source]]` may say
 file_source        each file of a path once                 file_task         reads files in Spark's tasks
 kafka_topics       what a Kafka cluster says of a topic     auto_cdc          changes with columns, as Spark's AUTO CDC
 source_rows        what sources with columns share          change_rows       their rows as records
 missing_columns    columns that files do not have yet
        │
        ▼
 query              every micro-batch is one Delta commit    dataframes        a DataFrame as the input of an append
 upstream           the source's identity and log starts, asked before a micro-batch
 query_errors       what a query died of, in one line        source_issues     why a source cannot be read now
```
"""
