"""Recipes for several agents: independent and shared PPO and A2C, MAPPO, VDN, QMIX."""
