"""Multi-task and meta-reinforcement learning."""
