"""Text mechanisms: what draws a word in place of a word, and a whole text."""
