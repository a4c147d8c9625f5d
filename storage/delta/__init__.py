"""The Delta log of a table: what it says, and every commit to it.

```
 snapshot   a table version as arrays (no Spark job)      history    the commits and what each carries
 commit     the only way to commit records                delta_transaction   Delta's part in it
 lock       one committing process on a local disk        crash_points        moments at which tests crash
 footers, slice_ranges, plan_values                       help for plans
```
"""
