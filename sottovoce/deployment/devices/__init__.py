"""From studies and files to devices."""
