"""Privacy accounting: loss distributions, composition, shuffle amplification, planning. NumPy and SciPy only."""
