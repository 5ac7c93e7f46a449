"""Sources of texts and labels."""
