"""Keys and values that a schema registry describes, as JSON text, and the types of their columns.

```
 frame: 0 | schema id | payload          as Confluent's serializers write it; Karapace, Apicurio and Redpanda speak the same
              │           │
 schemas ──► formats: one format per id:  avro, avro_reader, avro_types | json_schema | protobuf, protobuf_types, protobuf_files
                          │                  floats: numbers as JSON has them
                          └──► JSON text, as Kafka Connect's JsonConverter writes it; a reason for each frame that cannot be decoded
```

Where schemas come from: `lastword.storage.schema_registry`.
"""
