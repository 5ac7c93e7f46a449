"""The public models that a client runs, and private texts as what they read."""
