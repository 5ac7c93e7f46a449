"""Contracts that every mechanism keeps, as tests: of the catalogue's, and by `pytest --sottovoce` of anybody's own."""
