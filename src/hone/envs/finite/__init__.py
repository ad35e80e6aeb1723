"""Finite Markov decision processes: worlds that are tables, and what is true of them exactly."""
