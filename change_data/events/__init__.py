"""Change events as input rows of an append.

```
 envelopes (settings) ──► event_rows: alike_events (many at once) | event_reader: debezium, flat_events
                                          event_headers   event_keys   event_positions (by connector)
```
"""
