"""hone: train a policy, prove that it got better, ship it safely, keep it good.

Belongs here: the version and nothing heavy. `import hone` never imports torch.
"""

__version__ = "0.1.0"
