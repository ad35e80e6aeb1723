"""Wing of language models: tasks, dialogues, tools, losses, preferences, scorers, search, evaluation, serving.

Imports neither `control` nor `decide`; `docs/project/architecture.md` has the map.
"""
