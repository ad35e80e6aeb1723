"""Toy tasks of language models that are learnt in seconds, with verifiers that know the whole truth."""
