"""A study's run, and the ground truth that it owns."""
