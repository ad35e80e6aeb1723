"""Bandits that tell their probabilities: models of rewards learnt in closed form, rules that explore with them, and
wrappers that transform a policy's distribution. Numpy only."""
