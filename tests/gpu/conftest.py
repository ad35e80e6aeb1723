"""Generation in bfloat16 on any torch with CUDA."""

import gathered_pages
import pytest


@pytest.fixture(autouse=True, scope="session")
def paged_attention() -> None:
    gathered_pages.install()
