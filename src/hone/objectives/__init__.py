"""Losses as pure functions: what was decided then, what the policy says now -> one term per decision.

Belongs here: mathematics on tensors. Does not: optimizers, batches, logging. A loss is a sum of `weight * term`, and
the weights (`weights.py`) are fixed once per optimizer step, so no split of the batch can change a gradient.
"""
