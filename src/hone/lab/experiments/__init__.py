"""One file per experiment, found by its name; each ends in `EXPERIMENT = Experiment(...)`."""
