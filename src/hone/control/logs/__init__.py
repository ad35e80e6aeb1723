"""Logs of decisions on disk: hone's parquet format and Minari's datasets."""
