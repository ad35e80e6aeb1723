"""Token generation: requests in, completions out, from the trainer's own module.

Belongs here: scheduling, key-value slots, sampling. Does not: a model's arithmetic (it comes as a protocol), rewards.
"""
