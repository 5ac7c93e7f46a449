"""Attacks on a finished run: guesses of the server, compared with the truth."""
