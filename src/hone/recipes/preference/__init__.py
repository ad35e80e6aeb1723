"""Preferences: losses on pairs of answers, on labelled answers, and on pairs that the policy draws itself."""
