"""Transport of messages: Flower's engine and SuperLink, HTTPS services."""
