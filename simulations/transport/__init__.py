"""How messages travel: Flower's engine and SuperLink, HTTPS services."""
