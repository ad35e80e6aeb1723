"""Bandits on the training loop: what their recipes share."""
