"""Text tasks: datasets, prompts, and the environment in which a language model answers them."""
