"""Sweeps: many settings of one config, each trained on several seeds and judged, and the best again on fresh seeds.

`config` is a sweep's file, `space` its values, `proposals` chooses the settings of the next trials, `trial_runs` makes
their runs as commands of `hone.process.commands`, `judge` scores them, and `search` does these in order.
"""
