"""Planning: values in, plans out.

```
 bounds ──► planner (eligible? order? how far?) ──► offset_map (budget) ──► grouping ──► receipt
            log_retention (segments that are deleted whole)     rate_limiter (bytes per second)
            merging (small slices)     backoff (after a cleaning that failed)
```
"""
