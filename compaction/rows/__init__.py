"""Rules over records: Arrow batches in, Arrow out; no files, no clock.

```
 append      validation ──► partitioners ──► producer_checks ──► numbering
 cleaning    fates, removal (why a record goes)              producer_summaries (what a stretch shows of its producers)
```
"""
