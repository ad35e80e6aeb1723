"""Bandit learners in closed form: posteriors over the reward of each arm. Numpy only."""
