"""What every test runs under: one thread, no network, the same examples on every machine."""

import os

# Set before torch or a tokenizer is imported by anything; setdefault, so that a caller may still choose.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

# A slow machine is no failure, and a failure seen once must be seen again: no deadline, fixed seeds.
settings.register_profile("hone", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hone")
