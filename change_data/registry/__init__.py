"""Keys and values that a schema registry describes, as JSON text and Connect schemas.

```
 frame: 0 | schema id | payload          as Confluent's serializers write it; Karapace, Apicurio and Redpanda speak the same
              │           │
 schemas ──► formats: one format per id:  avro, avro_reader, avro_connect | json_schema | protobuf, protobuf_connect, protobuf_files
                          │                  connect: the words of a Connect schema
                          └──► JSON text, as Kafka Connect's JsonConverter writes it; a reason for each frame that cannot be decoded
```

Where schemas come from: `lastword.storage.schema_registry`.
"""
