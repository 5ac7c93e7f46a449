"""Deployment on real processes: keys, shuffler, training server, administration of devices."""
