"""Collected answers: rounds, continuations, revisions and selections."""
