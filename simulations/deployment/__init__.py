"""A study's arm on real processes: its parties, their keys and certificates."""
