"""Scorers of answers: config, loss and job of reward models."""
