"""What was lived through, kept and sampled again. Numpy only."""
