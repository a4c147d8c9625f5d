"""Benchmarks: ratios of two things measured in one run, never a timed test. `make bench`, or `python -m benchmarks NAME`."""
