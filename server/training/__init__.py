"""One file for each way of training."""
