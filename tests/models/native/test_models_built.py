"""Where there is a compiler the kernels are built: their own tests skip where they are not, and would say nothing."""

import pytest

from hone.models.native import library, perceptron
from hone.native.build import find_compiler, is_disabled

pytestmark = pytest.mark.skipif(find_compiler() is None or is_disabled(), reason="no compiler, or not wanted")


def test_the_kernels_of_layers_are_built() -> None:
    assert library.why_unavailable() is None


def test_the_perceptron_is_built() -> None:
    assert "plain" in perceptron.build().instruction_sets
