"""Pages about decisions: the log, drift, and the proof of a shield."""
