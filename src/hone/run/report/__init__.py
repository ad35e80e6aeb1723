"""Pages and pictures of a run: the HTML report, SVG plots, comparisons and timelines."""
