"""Columns of the rows that values hold: their types, their JSON, and tables out of them.

```
 column_types     what a column is (`Column`)          connect_schema   columns out of Connect's schemas and of DDL
 column_values    what a value of a type is            json_rows        fields of JSON objects, canonical keys
 row_converter    a source's values to canonical JSON  row_decoder      canonical JSON to Arrow
 table_columns    keys and values as rows of a table
```
"""
