"""Tests and intervals that hold at every look: e-processes, confidence sequences, sample ratios, detectable effects.

Belongs here: pure functions of events, one run or many at once. Does not: what is done with an alarm.
"""
