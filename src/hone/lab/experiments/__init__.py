"""One file an experiment, found by its name; each ends in `EXPERIMENT = Experiment(...)`."""
