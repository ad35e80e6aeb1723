"""Tools of dialogues: formats of calls, schemas of functions, and the box that a dialogue calls them from."""
