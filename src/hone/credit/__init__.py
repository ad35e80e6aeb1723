"""Credit assignment: rewards -> advantages and value targets. Numpy only, vectorised over ragged batches."""
