"""A policy judged: held-out scores with intervals, comparisons on the same questions. Knows nothing of training."""
