"""Figures of dialogues, run by `benchmarks/dialogues.py`; a module holds what `demonstrations` asks for."""

from demonstrations import Bar as Bar
