"""Finite Markov decision processes as tables, and their exact solutions."""
