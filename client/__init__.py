"""Code that runs on the user's device."""
