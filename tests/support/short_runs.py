"""A config of a run that takes a second."""

SHORT = """recipe = "ppo"
steps = 3
[env]
id = "CartPole-v1"
num_envs = 2
[evaluation]
episodes = 2
every = 1
"""
