"""What others read or store, compared with the golden files of `tests/goldens`."""
