"""What a protocol costs: loss distributions, composition, shuffle amplification, planning. NumPy and SciPy only."""
