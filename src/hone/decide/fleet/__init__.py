"""Fleets of robots: ingest of steps that were decided elsewhere, the device's spool, signed policies, cohorts.

Belongs here: everything between a robot and the log that a learner reads. `device`, `spool` and `manifest` need
Python's standard library alone, so that they start on a robot. Does not: learning, which reads the log as a file.
"""
