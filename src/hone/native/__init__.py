"""Compiled code: how a folder of C++ becomes a library in the user's cache.

Belongs here: which compiler, which flags, where libraries lie, how they are opened, and what all sources share
(`include/`). The sources themselves stand with the part that calls them. Neither torch nor a model is known here.
"""
