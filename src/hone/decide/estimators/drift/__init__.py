"""Detectors of drift: has a stream of numbers, of features or of counts changed? Numpy only.

Every detector declares how often it is wrong while nothing changes (`FalseAlarmBudget`), keeps bounded memory, and
takes up a saved state exactly: the same stream gives the same alarm after a restart.
"""
