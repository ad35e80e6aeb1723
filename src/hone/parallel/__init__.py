"""Several processes that work for one run: ranks, their share of a batch, sharded parameters, and the Ray fleet.

Ray is an extra: this folder and `control/environments/ray_blocks.py` alone import it.
"""
