"""Watching a policy in production: drift and health, and the answer to drift: alert, recall or retrain."""
