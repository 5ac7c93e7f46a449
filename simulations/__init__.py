"""Wires both sides together and owns the ground truth."""
