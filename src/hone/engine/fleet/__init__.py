"""A fleet of replicas as one engine: bookkeeping, replicas, and the seam to the processes that hold them."""
