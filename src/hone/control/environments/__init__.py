"""Gymnasium environments: checked, vectorised, in this process or in worker processes, with exact snapshots."""
