"""Environments: text tasks, Gymnasium environments, bandit arms, logs.

Belongs here: worlds and the datasets that they are made of. Does not: rewards' verdicts, policies, learning.
"""
