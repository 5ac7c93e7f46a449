"""Audits: claims of mechanisms, clients and the shuffler, compared with measurements."""
