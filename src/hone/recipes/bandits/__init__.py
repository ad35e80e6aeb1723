"""Bandit algorithms."""
