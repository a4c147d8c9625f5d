"""The rules of a compacted log: pure, no Spark, no clock, no I/O.

It imports the standard library; `rows/` and `order/` also import Arrow, NumPy, Polars and msgspec.

```
 planning/        which partitions are cleaned, how far, in which order; groups, retention, receipts
 readers          registered readers and what is kept for them
 rows/            rules over records: validate, partition, check producers, number; what becomes of them in a cleaning
 order/           source sequences; positions, epochs and states of sources
 read_positions   where a reader is and what it missed        producers    producers and transactions
 log/             segments; table versions after RESTOREs
 config/          settings: Kafka's names, defaults, ranges
 display          results as a short line and as tables of HTML
 errors, moments, secrets
```

`docs/semantics.md` numbers the rules; `tests/model.py` is the executable specification.
"""
