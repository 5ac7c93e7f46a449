"""Shuffler, in a simulation and as a service: it sees who sends, and never the content."""
