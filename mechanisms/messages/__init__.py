"""Requests and replies, sealed or not, and their form on the wire."""
