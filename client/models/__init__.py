"""Public models that a client runs, and the preparation of private texts as their input."""
