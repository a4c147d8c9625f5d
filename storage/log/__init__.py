"""The log of one topic.

```
 topic_log        the log, shared by all appenders of a process; `LogState`, the log at one table version
 append_locks     one append to a topic at a time in a process
 unrecorded       decisions that the log's history tells and the ledger does not have
 aborted          aborted transactions of the dirty section
 partition_logs   what planning knows of the partitions
 producer_states  producers and open transactions, read from the log
 reader_history   what readers cannot see in the rows: removed tombstones, RESTOREs
 reader_positions where registered readers are, in a small file each
 limits           after how much the log does something again
 upkeep           VACUUM, checkpoints, expiry of dead letters and decisions
```
"""
