"""The Delta log of a table: what it says, and every commit to it.

```
 tables     opens tables, and follows them to their newest version
 snapshot   a table version as arrays (no Spark job)      history    the commits and what each carries
 following  the next snapshot from the one before         crash_points   moments at which tests crash
 commit     the only way to commit to a table of ours     small_tables   commits to the ledger and the dead letters
 footers    what records take in a file
 commit_text  what a commit says                          put            a commit put only where none is, on a disk or a store
 protocol     what a table asks of its writers            folder_locks   between the processes of one machine
```
"""
