"""A run on disk: config, metrics, samples, checkpoints, one manifest, and the report made from them. No torch.

Belongs here: everything that knows the layout of `runs/<name>/`. What the values mean belongs to the loops.
"""
