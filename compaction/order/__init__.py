"""The order of records by their source: what a source sequence is, and what is known of each source.

```
 sequences          a source sequence as a text that sorts       source_positions   scope, commit, order of change events in one text
 source_epochs      snapshots of a source and their epochs       source_states      counts and notes of each source
```
"""
