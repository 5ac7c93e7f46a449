"""What is computed once and kept: encoders, embeddings, vocabularies, language models."""
