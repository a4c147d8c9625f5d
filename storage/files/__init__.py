"""What lies where: the columns of the tables, the folders of a log.dir and of a topic, and the data files.

```
 schema       columns and properties of the tables            paths          folders, local or on an object store
 data_files   writes a slice as Parquet, with statistics       data_reader    reads one row group at a time
 row_files    files of the ledger and the dead letters          locations      where a path or URI leads
 json_files   small files with a checksum                 file_listing   which files a query has taken
 source_files the files of a source, and their rows             source_streams their bytes, decompressed
 file_format  formats and their options                        input_files    one file as the input of an append
 object_stores  an object store as obstore reaches it, and what its options mean there
```
"""
