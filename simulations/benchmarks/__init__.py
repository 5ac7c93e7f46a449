"""How fast this is, beside peers."""
