"""The report of finished runs, for who has to judge them: one HTML file that needs nothing else, and a privacy label."""
