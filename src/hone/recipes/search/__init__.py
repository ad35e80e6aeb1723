"""Training on what a search or a selection of answers found."""
