"""Shape annotations that every supported numpy lets jaxtyping read."""

import re
from pathlib import Path

import hone


def test_no_shape_is_annotated_on_an_alias_of_numpy():
    """From numpy 2.5 on `NDArray` is an alias without a class: importing `Float[NDArray[...], ...]` fails."""
    spelled = re.compile(r"\b(Float|Int|UInt|Bool|Real|Shaped|Num)\d*\[\s*NDArray\b")
    folder = Path(hone.__file__).parent
    found = [str(path) for path in folder.rglob("*.py") if spelled.search(path.read_text(encoding="utf-8"))]
    assert found == []
