"""Settings of topics and of the service.

```
 keys          every setting: type, default, range, synonyms (TOPIC_KEYS, SERVICE_KEYS); Kafka's settings that are refused (REFUSED_KEYS)
 topic_config  parses them and reports all mistakes at once; TopicConfig has a field for each, which segments, numbering and grouping use
```
"""
