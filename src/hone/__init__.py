"""hone: reinforcement learning for language models, control and bandits.

Belongs here: the version and nothing heavy. `import hone` never imports torch.
"""

__version__ = "0.1.0"
