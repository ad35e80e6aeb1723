"""Token generation from the trainer's own module: requests in, completions out.

Scheduling, the KV cache, sampling. The model's arithmetic comes through a protocol.
"""
