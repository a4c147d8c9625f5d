"""Tables that are kept in step with topics: Delta tables of typed rows, without MERGE and without Spark.

```
 table             a table: made, stepped, written anew, kept up, erased from      table_options   how, and what was done
 bootstrap         a table that is made, or written anew: a task a partition
 typed_rows        the columns of a topic, and its records decoded to them
 log_rows          what a step reads of the log          step_changes   the new rows and the deleted ones of a step
 table_rows        records as typed rows, and whose row is whose                   periods         when the rows of a history hold
 key_index         where the rows of a key are           upkeep         fewer files, and unused ones
 table_log         what others did, and our commits      table_state    the table as its Delta log says it is
 table_properties  whose it is and where its reader is   table_schema   columns in Delta's words
 dropped_records   records that do not fit, as dead letters        partitioning    files by the values of partition columns
 table_files       data files     vectors   deletion vectors     statistics   of a data file
```
"""
