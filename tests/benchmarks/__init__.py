"""Benchmarks: `make benchmarks`. Never part of a test: what they print goes to `docs/records`."""
