"""What the methods of `Topic` do beyond a call into storage or streaming.

```
 description    metadata of a topic            explanation    why a partition is or is not cleaned now
 notebooks      a topic and a log.dir as HTML
 decisions      log starts, rolls, pauses      positions      where a reader starts
 sources        of change events: epochs, retired ones, what a snapshot lacks
 appending      what `append` is given: records, frames, files, change events
 arguments      keys, partitions and columns that a caller names
 queries        SQL over topics
 keys           the key that `get` is asked for
 materializing  starts the queries of Spark that keep a table    tables    keeps typed tables
 purging        erases a key, with a receipt
```
"""
