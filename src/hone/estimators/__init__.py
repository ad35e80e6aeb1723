"""What a policy is worth, and how sure that is: intervals and tests. Numpy only."""
