"""Offline reinforcement learning from a log."""
