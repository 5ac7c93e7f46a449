"""Where texts and labels come from."""
