"""One run of an experiment: preparation, arms, scores, results. Owns the ground truth."""
