"""Turns rows with columns of any type, in memory or in files, into records: keys, JSON values, deletions, order. Without Spark.

```
 row_words        the settings of a user: which columns are the key, what deletes, what orders
 json_columns     columns as JSON texts and as keys, byte for byte as Spark writes them
 sql_expressions  conditions and orders in SQL: those that mean the same here and in Spark; all others are refused
 typed_texts      rows of text files with a schema
 text_casts       texts as values of a type
 record_rows      all of it: batches of rows as input rows of an append
```
"""
