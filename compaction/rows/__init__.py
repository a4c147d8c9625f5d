"""Rules over records: Arrow batches in, Arrow out; no files, no clock.

```
 append      input_columns ──► validation ──► partitioners ──► sequence_checks, producer_checks ──► numbering
             batches (of a bounded size)      sequence_bounds (what the log knows before)   unchanged_columns (what an event leaves out)
 cleaning    fates (what becomes of a record, and why)   producer_summaries (what a stretch shows of its producers)
```
"""
