"""Benchmarks: what the machine at hand does, as a ratio to a plain way of doing the same."""
