"""Rows of files as keys and values: `file_rows`."""
