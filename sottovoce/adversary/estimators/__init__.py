"""The server as the adversary: releases and public data in, guesses out. Truth is not here."""
