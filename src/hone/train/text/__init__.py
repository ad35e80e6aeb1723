"""Training of language models: datasets, rollouts, losses, learners and jobs that the text recipes share."""
