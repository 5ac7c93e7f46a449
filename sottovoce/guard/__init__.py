"""Guard of a Flower node: any ClientApp runs in a sandbox, and releases alone leave, by the operator's policy."""
