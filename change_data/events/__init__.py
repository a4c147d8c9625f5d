"""Change events as input rows of an append.

```
 envelopes (settings) ──► event_rows: alike_events (many at once) | event_reader: debezium, flat_events
                                          event_headers   event_keys
 event_positions   where an event stands in its source: a function for each connector
```

A new connector: event_positions, the names that settings take in envelopes, and the table in docs/order-of-change-events.md.
"""
