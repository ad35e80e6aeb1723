"""Shapes are part of a signature: every one is named, they cost nothing in a run, and here they are checked."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import torch
from jaxtyping import AbstractArray
from numpy.typing import NDArray

from hone import objectives
from hone.objectives.selection import Column
from hone.objectives.terms import PerDecision
from hone.objectives.value import squared_error

ROOT = Path(__file__).resolve().parents[2]
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
"""The tower: an int may stand where a float is asked for, as everywhere in Python."""
NAMES = [module.name for module in pkgutil.iter_modules(objectives.__path__, "hone.objectives.")]


def in_a_new_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def annotated() -> Iterator[tuple[str, Any]]:
    """Every annotation of every function, method and field of the folder, by its place."""
    for module in map(importlib.import_module, NAMES):
        own = [thing for thing in vars(module).values() if inspect.getmodule(thing) is module]
        classes = [thing for thing in own if inspect.isclass(thing) and not issubclass(thing, AbstractArray)]
        methods = [method for found in classes for method in vars(found).values() if inspect.isfunction(method)]
        members = [member for found in classes for member in vars(found).values() if isinstance(member, property)]
        doors = [member.fget for member in members if member.fget is not None]
        functions = [thing for thing in own if inspect.isfunction(thing)]
        for thing in (*functions, *classes, *methods, *doors):
            for name, annotation in inspect.get_annotations(thing).items():
                yield f"{module.__name__}.{thing.__qualname__}: {name}", annotation


def bare(annotation: Any) -> bool:
    """Whether a tensor or an array stands in it without a shape."""
    if isinstance(annotation, list | tuple):
        return any(bare(part) for part in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return False
    if annotation in (torch.Tensor, np.ndarray) or get_origin(annotation) is np.ndarray:
        return True
    return any(bare(part) for part in get_args(annotation))


def test_every_tensor_in_a_signature_has_a_shape() -> None:
    found = dict(annotated())
    assert len(found) > 400
    assert [place for place, annotation in found.items() if bare(annotation)] == []


def test_the_check_sees_what_has_no_shape() -> None:
    assert all(
        bare(annotation)
        for annotation in (
            torch.Tensor,
            torch.Tensor | None,
            Mapping[str, torch.Tensor],
            Callable[[PerDecision, torch.Tensor], PerDecision],
            NDArray[np.float64],
        )
    )
    assert not any(bare(annotation) for annotation in (PerDecision, tuple[PerDecision, ...], Column, float, str))


@pytest.mark.slow
def test_every_loss_refuses_what_would_spread() -> None:
    """The cases of every loss, right and wrong, and all values worked out by hand, once with every shape checked."""
    files = [name for name in sorted(Path(__file__).parent.glob("*.py")) if name.name != Path(__file__).name]
    tests = [str(name) for name in files if name.name.startswith(("test_", "shapes_checked"))]
    how = ["-q", "-p", "no:cacheprovider", "-k", "shapes_checked or hand"]
    answer = in_a_new_python("-m", "pytest", *how, f"--jaxtyping-packages=hone.objectives,{CHECKER}", *tests)
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None and int(passed.group(1)) > 250, answer.stdout[-2000:]


def test_a_run_pays_nothing_for_shapes() -> None:
    """Not wrapped: a wrong shape is let through, as in any code on tensors. And the front door does not import it."""
    if "__wrapped__" in vars(squared_error):
        pytest.skip("these tests themselves run under the hook")
    assert squared_error(torch.zeros(3, 1), torch.zeros(3, 1)).loss.shape == (3, 1)
    answer = in_a_new_python("-c", "import hone.cli.main, sys; print('jaxtyping' in sys.modules)")
    assert answer.stdout.strip() == "False", answer.stderr
