"""One run of an experiment: preparation, arms, scores and results. It owns the true labels."""
