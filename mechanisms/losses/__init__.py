"""Loss distributions and blankets of mechanisms: what one release can say, before any composition."""
