"""`lastword run`: an append query of Spark per source, the cleaner over all topics, and the typed tables.

```
 settings          lastword.toml, checked as a whole    mistakes   what is wrong with it, in words
 service           what runs together: sources, cleaner, tables, HTTP; Spark where there is a source
 source_queries    the part that needs PySpark
 supervisor        starts the sources, and starts them again when they failed    signals   SIGTERM and Ctrl-C
 backlog           what a source has that its query has not read
 tables            keeps typed tables in step with their topics    table_settings   what a [[table]] may say
```
"""
