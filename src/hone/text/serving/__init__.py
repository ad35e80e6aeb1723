"""A language model behind an address: OpenAI's protocol, and agents whose requests become episodes."""
