"""HTML report of finished runs, with a machine-readable privacy label."""
