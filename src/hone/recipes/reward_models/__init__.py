"""Reward models and verifiers: scorers that learn from labelled answers."""
