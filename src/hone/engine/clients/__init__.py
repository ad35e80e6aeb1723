"""Clients of inference servers in other processes: vLLM, SGLang, and servers with OpenAI's protocol.

They send requests, and check that the answers can be trained on.
"""
