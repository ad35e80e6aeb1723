"""Off-policy estimation: the value of a policy from decisions that another policy made and logged. Numpy only.

Belongs here: estimators of one decision and of trajectories, models of the reward, fitted Q evaluation, intervals, and
the rules by which an estimate is refused. Does not: files, policies, tables of decisions joined with their outcomes.
"""
