"""Worlds that come with hone: small dialogues that a policy learns in a minute, and the demonstrations they start from.

Belongs here: the rules of a game, its rows, and imperfect players to imitate first. Does not: how dialogues are run
(`text/dialogues`).
"""
