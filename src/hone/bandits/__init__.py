"""Learners in closed form: posteriors over what each arm pays. Numpy only."""
