"""Attacks on a finished run: the server's guesses, held against the truth."""
