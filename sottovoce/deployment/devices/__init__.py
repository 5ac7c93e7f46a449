"""Preparation of devices from studies and files."""
