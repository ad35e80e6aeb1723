"""Training of tables: the job that the tabular recipes share."""
