"""Serving: completions of a policy over HTTP, and agents that are trained by its address."""
