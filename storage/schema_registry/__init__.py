"""Schemas of a registry: fetched once, kept in a file for each id, and what decodes frames with them.

```
 decoder    frames to JSON, a format for each id that it meets     lastword.change_data.registry.formats
 store      a file per id below the topic
 client     GET /schemas/ids/…: several URLs, retries, logins
```
"""
