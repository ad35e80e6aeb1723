"""Training of agents that call an OpenAI-compatible address: their requests become episodes of drawn tokens."""
