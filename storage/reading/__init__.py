"""Reading a log, in Spark and without it.

```
 Spark     dataframes   changes   time_travel   decoding
 Arrow     arrow_view (what a reader sees)   arrow_rows   arrow_ranges   arrow_frames      no JVM
 sql       the same fold as one query for other engines
```
"""
