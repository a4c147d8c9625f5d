"""The log on Delta: its tables, every read and every commit of them.

```
 verify  erasure              checks invariants; erases a key
 key_search                   finds a key in data files
 tables/                      typed tables that are kept in step with topics
 reading/                     records, latest, changes, time travel, as Arrow
 cleaning/                    a round of cleaning, retention, merging of small files
 append/                      validation, partitioning, numbering, dead letters, transactions
 log/                         one topic's log: snapshot, config, producer states, upkeep
 ledger/                      the table of decisions
 delta/                       snapshots, history, commits
 tasks                        where pieces of work run: threads of this process, or a cluster
 progress                     how far long work is, for progress bars
 schema_registry/             schemas of a registry: client, store, decoder
 files/                       schemas and paths
```

No Spark: nothing here imports pyspark. A package imports only those below it.
"""
