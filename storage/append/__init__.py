"""Appending rows to a log: validate, number, write, commit. No Spark.

```
 requests    what an append is asked for and returns      inputs           what people have in memory, as Arrow tables
 plan        what writing needs to know                   key_lookup       records of some keys in the log
 writing     the rules of compaction/rows, then files     ranges           what was written, by partition
 batch_rows  the same, of a file larger than memory
 append      one attempt, one Delta commit
 dead_letters     refused rows of streams
 transactions     begin, append, end                      markers  fencing
 source_decisions what the ledger says of sources         snapshot_gaps    rows that a snapshot of a source lacks
```
"""
