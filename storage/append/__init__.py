"""Appending rows to a log: validate, number, write, commit. No Spark.

```
 inputs ──► writing (the rules of compaction/rows, then files) ──► append (one Delta commit)
               └────────► dead_letters            transactions: begin, append, end
```
"""
