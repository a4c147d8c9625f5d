"""The command line: `lastword COMMAND`.

```
 app           runs a command                                        commands   which there are, each imported when it runs
 topics  transactions  cleaning  purge  keys  sql  sources  typed_tables  operate  run      a group of commands each
 records       records, dead-letters, verify     readers   latest, table, changes, materialize; registered readers: list, drop
 mistakes      exit codes, and the error of a wrong option          values    keys and values as they are shown
 options       options that commands share; tables and cleaning_tables print for people, JSON Lines for pipes
```
"""
