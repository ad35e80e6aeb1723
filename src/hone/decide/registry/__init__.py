"""Registry of policy versions: content, lineage, evidence, the stage of each in a service, and the journal of rollouts.

Belongs here: records on disk and transactions. Does not: when a version moves (`decide.rollout`), policies themselves.
"""
