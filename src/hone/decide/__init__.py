"""Wing of decisions in production: bandits, the log, joins, estimates, registry, gateway, rollout, monitor, shield.

Imports neither `text` nor `control`; torch is imported only where a policy is a network.
"""
