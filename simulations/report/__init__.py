"""The report of finished runs, for who has to judge them: one HTML file of itself, and a privacy label."""
