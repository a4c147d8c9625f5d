"""Cleaning a log: one round over partitions of a topic, and what removes or merges whole segments.

```
 cleaning      the round: a task a partition ──► check ──► swap (one Delta commit) ──► receipts
 task          one partition: map, ask, group, stream          offset_map    its first pass
 key_hashes    hashes of the keys of clean files, by which files without a dirty key are not read
 retention     segments that are deleted whole
 log_starts    log starts that DeleteRecords or the source of a mirror decide
 small_files   slices that are merged into fewer files, without a change of data
 slices        the slices of a segment that is written again
 limits        how much a cleaning or a merge takes at a time
```
"""
