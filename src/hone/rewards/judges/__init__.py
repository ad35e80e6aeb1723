"""Judges: language models that grade answers. Prompts, verdicts, cache, budgets and canaries, without any connection.

Belongs here: what is asked, how a reply is read, and what is kept and counted. `evaluate/text/judges` asks servers and
local models, and measures the judge's health.
"""
