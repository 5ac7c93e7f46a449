"""Analyses without a run: plans, figures, deniability, comparisons, and the ladder of a ledger."""
