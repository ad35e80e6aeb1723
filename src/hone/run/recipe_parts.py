"""The parts of a recipe, read from the code that wires it, so that a recipe file names each part once."""

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeParts

_HELPERS = (
    "hone.recipes.",
    "hone.control.deterministic",
    "hone.control.offline",
    "hone.control.on_policy",
    "hone.text.advantages",
    "hone.text.loss_adapters",
    "hone.text.reference_policies",
)
"""Modules whose functions only wire parts: their code is read too."""
LIVE_SOURCE = "Live(text task, engine)"


def recipe_parts(
    method: Callable[..., Any],
    *extra_loss: Callable[..., Any],
    source: str = LIVE_SOURCE,
    weights: Sequence[Callable[..., Any]] = (),
) -> RecipeParts:
    """The parts that `method` names, in the order of its code, with those of the helpers that it calls.

    Credit: from `hone.credit`, classes and functions that return credits or episodes. Loss: functions of
    `hone.objectives` on data, then `extra_loss`. Weights: functions of `hone.objectives.weights`, or `weights`. A
    source from `hone.sources` wraps `source`, unless that names it. Of a table of alternatives, the first one, which is
    the default.
    """
    assert isinstance(method, FunctionType)
    named = list(dict.fromkeys(_named(method.__code__, method.__globals__)))
    for part in named:
        is_source = part.__module__.startswith(("hone.sources.", "hone.text.recipe"))
        if is_source and f"{part.__name__.removesuffix('Source')}(" not in source:
            source = f"{part.__name__}({source})"
    return RecipeParts(
        source=source,
        credit=[part for part in named if _is_credit(part)],
        loss=[*filter(_is_loss, named), *extra_loss],
        weights=weights or [part for part in named if part.__module__ == "hone.objectives.weights"],
    )


def _is_credit(part: Callable[..., Any]) -> bool:
    if not part.__module__.startswith("hone.credit."):
        return False
    return isinstance(part, type) or inspect.signature(part).return_annotation in (Credits, Episodes)


def _is_loss(part: Callable[..., Any]) -> bool:
    """A function of data; what names an estimator or combines terms (`kl_loss_estimator`, `add_terms`) is none."""
    module = part.__module__
    if isinstance(part, type) or not module.startswith("hone.objectives.") or module == "hone.objectives.weights":
        return False
    first, *_ = inspect.signature(part).parameters.values()
    return first.annotation not in (str, LossTerms)


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """Functions and classes that `code` names, and those that its helpers name, in order; `names` are its globals."""
    owner: object = None
    for step in dis.get_instructions(code):
        known = vars(owner) if isinstance(owner, ModuleType) else names if step.opname == "LOAD_GLOBAL" else {}
        owner = value = step.argval if isinstance(step.argval, CodeType) else known.get(step.argval)
        if isinstance(value, Mapping):
            value = next(iter(value.values()))
        if isinstance(value, partial):
            value = value.func
        if isinstance(value, FunctionType):
            value = inspect.unwrap(value)  # under `torch.no_grad()`
        if isinstance(value, CodeType):
            yield from _named(value, names)
        elif isinstance(value, FunctionType) and value.__module__.startswith(_HELPERS):
            yield from _named(value.__code__, value.__globals__)
        elif isinstance(value, FunctionType | type):
            yield value
