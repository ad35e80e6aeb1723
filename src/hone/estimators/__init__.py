"""Statistics of evaluations: means, intervals and tests. Numpy only."""
