"""A log as DataFrames and as streams.

```
 dataframes   records and last words     changes   what changed     decoding   values with a schema
 tail         a streaming DataFrame      tail_source  its source   sinks   functions that are called
 growth_source   a micro-batch without rows whenever a topic has grown
 by_partition   numbers of a partition in a Spark plan
```
"""
