"""The five papers, item by item: what can be run here, and what it gives beside what they print."""
