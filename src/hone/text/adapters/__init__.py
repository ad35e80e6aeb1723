"""Environments of other libraries, as worlds of dialogues and as drivers of agents."""
