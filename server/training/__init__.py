"""Training of models, one file for each kind."""
