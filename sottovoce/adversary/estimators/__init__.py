"""Estimators of the adversary, who is the server: releases and public data in, guesses out.

They never see the truth.
"""
