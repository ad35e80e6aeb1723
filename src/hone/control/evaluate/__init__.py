"""Evaluation of control policies: returns, exact values, videos, maps and perturbations."""
