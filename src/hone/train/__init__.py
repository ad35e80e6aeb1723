"""Training: the one loop, the gradient learner, the sources, and a recipe file per algorithm."""
