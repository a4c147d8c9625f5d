"""`lastword run`: one Spark application with an append query per source and the cleaner query over all topics.

```
 settings      lastword.toml, checked as a whole
 service       the application: topics, cleaner query, signals
 supervisor    starts the sources, and starts them again when they failed
 tables        keeps typed tables in step with their topics    table_settings   what a [[table]] may say
```
"""
