"""Rules over records: Arrow batches in, Arrow out; no files, no clock.

```
 append      input_columns ──► validation ──► partitioners ──► sequence_checks, producer_checks ──► numbering
 cleaning    fates, removal (why a record goes)              producer_summaries (what a stretch shows of its producers)

 order       sequences   source_positions (one text)   event_positions (by connector)   source_epochs   source_states
 events      envelopes ──► event_rows: alike_events (many at once), event_reader: debezium, flat_events, event_headers, event_keys
 columns     column_types   column_values   connect_schema   row_converter   row_decoder   table_columns   unchanged_columns
 text        json_rows   file_rows
```
"""
