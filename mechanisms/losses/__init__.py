"""Loss distributions and blankets of single releases, before any composition."""
