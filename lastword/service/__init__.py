"""`lastword run`: one Spark application with an append query per source and the cleaner query over all topics.

```
 settings      lastword.toml, checked as a whole
 service       starts and stops the queries; its loop handles signals and requests
 requests      what another process asks of the one that holds the log.dir
```
"""
