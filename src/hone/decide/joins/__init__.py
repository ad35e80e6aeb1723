"""Joining delayed outcomes to logged decisions: the table that estimators and learners read.

Belongs here: the join, its rules and counts, the delay curve, frozen views on disk, and the judgement of a log. Does
not: storage of the log itself (`decide/log`), estimates (`estimators`).
"""
