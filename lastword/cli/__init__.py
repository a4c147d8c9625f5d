"""The command line: `lastword COMMAND`.

```
 app           assembles the commands
 topics  transactions  records  cleaning  readers  purge  operate  run      a group of commands each
 requests      commits here, or asks the process that holds the log.dir
 options       options that commands share; tables and cleaning_tables print for people, JSON Lines for pipes
```
"""
