"""The command line: `lastword COMMAND`.

```
 app           assembles the commands
 topics  transactions  records  cleaning  readers  purge  sources  typed_tables  operate  run      a group of commands each
 options       options that commands share; tables and cleaning_tables print for people, JSON Lines for pipes
```
"""
