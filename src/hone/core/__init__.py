"""The nouns that every part speaks: episodes, credits, random streams, clock, config base, errors.

Belongs here: plain data and protocols on numpy. Does not: torch, files, processes.
"""
