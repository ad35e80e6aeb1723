"""Judges at work: replies from servers and local models, grades of answers, and the judge's health."""
