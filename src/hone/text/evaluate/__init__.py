"""Evaluation of language models: answers scored, streamed and served."""
