"""What a protocol costs: loss distributions, composition, shuffle amplification, planning. NumPy and SciPy only,
except `pld`, which needs the optional dependency dp-accounting (`pip install sottovoce[accounting]`).
"""
