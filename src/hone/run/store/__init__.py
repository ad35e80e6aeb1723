"""Runs on disk: config, metrics, samples, checkpoints and a manifest. No torch.

Belongs here: the layout of `runs/<name>/`. Does not: the meaning of the values.
"""
