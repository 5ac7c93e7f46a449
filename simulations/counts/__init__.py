"""Simulation of a count: how many users hold a text of each class."""
