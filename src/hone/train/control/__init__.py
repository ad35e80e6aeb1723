"""Training of control policies: rows, actors, sources and jobs that the control recipes share."""
