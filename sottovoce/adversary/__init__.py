"""Adversary: attacks on finished runs, and audits of mechanisms and clients."""
