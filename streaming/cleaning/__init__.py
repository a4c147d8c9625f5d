"""The cleaner query: which topics and partitions it works on, in which order and how fast.

```
 scheduler   what a tick does: clean, retain, merge, upkeep, topic by topic
 cleaner     rounds over the partitions of a topic
 failures    failed cleanings: tried again with backoff, or quarantined; in the ledger
 maintenance_locks   which thread maintains a topic
 claims      which process works on a topic, in the ledger
 rate_limit  log.cleaner.io.max.bytes.per.second and log.cleaner.threads, shared by the rounds
```
"""
