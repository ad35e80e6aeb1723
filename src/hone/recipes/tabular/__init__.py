"""Tabular methods and linear function approximation."""
