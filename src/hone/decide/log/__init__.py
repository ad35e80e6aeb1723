"""The decision log: decisions and outcomes, stored once and kept, on SQLite, PostgreSQL or Redis. No torch.

Belongs here: the protocol `DecisionLog`, its engines, their codec, parquet files, retention and erasure. Does not: the
join of decisions with their outcomes, estimates.
"""
