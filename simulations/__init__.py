"""Simulation that connects clients and server, and holds the true labels."""
