"""Text mechanisms: draws of a word in place of a word, and of a whole text."""
