"""Evaluation of policies: held-out scores with intervals, comparisons on the same questions; no training."""
