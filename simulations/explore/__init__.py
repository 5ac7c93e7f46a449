"""A page on the loopback on which one types a sentence, and watches what leaves and what it tells."""
