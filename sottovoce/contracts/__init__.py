"""Contracts of every mechanism, as tests: of the catalogue's, and by `pytest --sottovoce` of your own."""
