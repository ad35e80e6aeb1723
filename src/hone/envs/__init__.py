"""What answers an action: text tasks, Gymnasium environments, bandit arms, a log read back.

Belongs here: worlds and the datasets that they are made of. Does not: rewards' verdicts, policies, learning.
"""
