"""Reproduction of the five papers, item by item, with their published numbers beside ours."""
