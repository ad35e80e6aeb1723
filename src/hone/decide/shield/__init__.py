"""Shields: rules, safety games and inductive invariants that keep a policy's actions safe, each with its proof.

Belongs here: models of a system as text, the proofs, certificates, and the shields that look actions up in them. Does
not: policies (`hone.decide.bandits` wraps them), environments, pages.
"""
