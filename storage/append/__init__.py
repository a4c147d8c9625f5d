"""Appending rows to a log: validate, number, write, commit. No Spark.

```
 requests    what an append is asked for and returns      inputs           what people have in memory, as rows
 plan        what writing needs to know                   key_lookup       records of some keys in the log
 writing     the rules of compaction/rows, then files     batches          cut, joined, divided by partition
 append      one attempt, one Delta commit                ranges           what was written, by partition
 dead_letters     refused rows of streams
 transactions     begin, append, end                      markers  fencing
 source_decisions what the ledger says of sources         snapshot_gaps    rows that a snapshot of a source lacks
 schema_registry  keys and values framed for a registry, as JSON
```
"""
