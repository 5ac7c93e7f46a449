"""What runs on the user's device."""
