"""Judges: language models that grade answers. Prompts, verdicts, cache, budgets and canaries, without any connection.

Belongs here: questions, the reading of replies, the cache and the counting. `text/evaluate/judges` asks servers and
local models, and measures the judge's health.
"""
