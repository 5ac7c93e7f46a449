"""Sweep: one experiment over a grid of keys and seeds, with tables and figures."""
