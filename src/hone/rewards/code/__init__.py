"""Rewards of programs: the share of hidden tests that an answer's program passes, run in the sandbox.

Belongs here: the program inside an answer (`programs`), the tests in the columns of a row (`rows`), and the functions
that workers import (`hidden_tests`). Does not: confinement and verdicts (`hone.sandbox`).
"""
