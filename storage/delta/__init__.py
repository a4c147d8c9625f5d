"""The Delta log of a table: what it says, and every commit to it.

```
 snapshot   a table version as arrays (no Spark job)      history    the commits and what each carries
 commit     the only way to commit to a table of ours      crash_points   moments at which tests crash
 spark_rows rows of a DataFrame as data files             small_tables   commits to the ledger and the dead letters
 footers, plan_values                                     help for plans
```
"""
