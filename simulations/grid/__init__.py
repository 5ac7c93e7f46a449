"""A study: one experiment over a grid of keys and seeds, its runs side by side, its tables and figures."""
