"""Reading a log without Spark; `lastword.streaming.reading` reads by the same views.

```
 view          what a reader of an isolation level sees at a table version
 time_travel   which versions answer a question about the past
 arrow_rows   arrow_ranges   arrow_frames   arrow_changes
 sql           the same fold as one query for other engines
 stale_keys    keys of which a newer row is a dead letter
```
"""
