"""A log as DataFrames and as streams.

```
 dataframes   records and last words     changes   what changed     decoding   values with a schema
 tail         a streaming DataFrame      tail_source  its source   materialize   tables that follow a topic
 target       a step of such a table     target_state   where it stands, what others did to it     target_columns   names and types
 by_partition   numbers of a partition in a Spark plan
 misfits      whose value does not fit   own_session    settings that are not the caller's
```
"""
