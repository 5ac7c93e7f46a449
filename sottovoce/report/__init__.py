"""HTML report of finished runs and privacy label for machines."""
