"""Loss functions: log-probabilities, values and advantages of decisions -> one loss term per decision.

Pure functions on tensors; optimizers and batches are elsewhere. A loss is a sum of `weight * term`, and the weights
(`weights.py`) are fixed once per optimizer step, so no split of the batch can change a gradient.
"""
