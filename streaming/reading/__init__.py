"""A log as DataFrames and as streams.

```
 dataframes   records and last words     changes   what changed     decoding   values with a schema
 tail         a streaming DataFrame      tail_source  its source    materialize, target   tables that follow a topic
```
"""
