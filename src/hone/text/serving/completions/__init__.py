"""A language model behind OpenAI's protocol, over the engine that training uses: the same tokens and the same bits."""
