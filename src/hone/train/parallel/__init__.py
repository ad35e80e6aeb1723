"""Several processes that train one model together: ranks, their share of a batch, sharded parameters."""
