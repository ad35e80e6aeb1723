"""Clients of engines that run in processes of their own: vLLM, SGLang, and whatever speaks OpenAI's protocol.

Belongs here: what is said to a server, and whether its answer can be believed. Does not: how tokens are drawn.
"""
