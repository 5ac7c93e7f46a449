"""Artifacts that are computed once and cached: encoders, embeddings, vocabularies, language models."""
