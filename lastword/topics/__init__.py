"""What the methods of `Topic` do beyond a call into storage or streaming.

```
 description    metadata of a topic            explanation    why a partition is or is not cleaned now
 decisions      log starts, rolls, pauses      positions      where a reader starts
 arguments      keys, partitions and columns that a caller names
 materializing  starts a materialized table    purging        erases a key, with a receipt
```
"""
