"""Cleaning a log: one round over partitions of a topic, and what removes or merges whole segments.

```
 cleaning          the round: cleaning_index (pass 1) ──► cleaning_rows (the rule) ──► swap (one Delta commit)
 cleaning_segments, cleaning_reads, judged, lanes     which segments, read how, by which task
 retention         segments that are deleted whole; small files that are merged
```
"""
