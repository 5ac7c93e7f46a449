"""Benchmarks: speed beside plain and published implementations. Not installed."""
