"""The ledger: a Delta table of decisions, one row each, and what holds today of all that were made.

`decisions` says what kinds there are and folds them; `ledger` keeps the rows; `table_columns` are those about columns of rows.
"""
