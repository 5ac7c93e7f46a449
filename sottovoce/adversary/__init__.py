"""Attacks on releases and audits of guarantees. `estimators` knows releases and public data, never the truth."""
