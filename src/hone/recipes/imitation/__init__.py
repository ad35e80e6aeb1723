"""Imitation learning with an expert or demonstrations."""
