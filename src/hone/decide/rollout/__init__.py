"""Staged rollout of a policy's version: assignment by hash, stages, evidence, and the way back.

Belongs here: the router, the controller and its plan. Does not: the mathematics of evidence
(`decide.estimators.sequential`), versions on disk (`decide.registry`), the service that answers (`decide.gateway`).
"""
