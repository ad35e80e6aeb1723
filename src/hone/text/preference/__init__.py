"""Preferences: losses on whole answers, pairs and labels, the reference asked once."""
