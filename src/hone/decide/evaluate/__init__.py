"""Off-policy evaluation of a logged table: the estimates, their page, and policies read from a run or a file."""
