"""Search at test time: several answers are drawn and one is selected, by a scorer or by a vote, whole or step by step.

A plan says how (`plans`), a coroutine of draws and scores carries it out (`procedures`), and `Searching` makes a
generator of it. `estimates` tells from a pool of answers what selecting among fewer of them is worth.
"""
