"""What other people's events and rows mean: change events, columns, schemas of registries, lines of files, as input rows of an append.

```
 events/      envelopes of Debezium, raw and flat: keys, values, deletions, positions
 registry/    formats of a schema registry: Avro, JSON Schema, Protobuf, as JSON and as columns
 files/       lines and rows of files
 frames/      rows with columns of any type as records, by the words of a source
 columns/     types, values, DDL; rows of a table out of keys and values
```

Pure, as `compaction/`, whose shape of input rows (`compaction.rows.input_columns`) is what it makes. `compaction/` never imports it.
"""
