"""What budgets buy, asked without a run: plans, figures, deniability, the ladder of a ledger."""
