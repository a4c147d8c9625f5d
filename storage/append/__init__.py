"""Appending rows to a log: validate, partition, number, commit.

```
 validation ──► partitioners ──► producer_rows ──► offsets ──► append (one Delta commit)
      └────────► dead_letters                                  transactions: begin, append, end
```
"""
