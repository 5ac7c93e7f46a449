"""Deployment on real processes: keys, gateway, shuffler, training server, administration of devices."""
