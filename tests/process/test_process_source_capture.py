"""Functions and classes of a script as the text of a module."""

from __future__ import annotations

import json
import linecache
import re
from collections import OrderedDict
from functools import partial
from math import sqrt

import numpy as np
import pytest

from hone.core.errors import ConfigError
from hone.process.source_capture import importable_name, module_text

PATTERN = re.compile(r"(\d+)", re.IGNORECASE)
WEIGHTS = {"right": 1.0, "wrong": [0.0, -0.5]}


def helper(text: str) -> int:
    return int(PATTERN.search(text).group(1)) if PATTERN.search(text) else 0


def importable(completion: str) -> float:
    return float(helper(completion))


def marked(function):
    return function


def run(thing: object, name: str | None = None) -> object:
    """The definition from its captured text, in an empty module."""
    names: dict[str, object] = {}
    own, text = module_text(thing)
    exec(compile(text, "captured", "exec"), names)
    return names[name or own]


def test_what_a_module_holds_is_named_and_what_a_function_made_is_not() -> None:
    def local() -> None: ...

    assert importable_name(importable) == f"{__name__}:importable"
    assert importable_name(OrderedDict) == "collections:OrderedDict"
    assert importable_name(local) is None
    assert importable_name(lambda: 0) is None


def test_what_a_script_defines_is_not_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importable, "__module__", "__main__")
    assert importable_name(importable) is None


def test_a_function_takes_along_what_it_uses() -> None:
    limit, inner = 40, json

    def shorter(text: str) -> float:
        return min(limit, sqrt(helper2(text))) * WEIGHTS["right"] + len(inner.dumps(WEIGHTS))

    def helper2(text: str) -> float:
        return float(np.sum([int(one) for one in PATTERN.findall(text)]))

    captured = run(shorter)
    for text in ("a 16 b 9", "", "12345"):
        assert captured(text) == shorter(text)


def test_functions_that_call_each_other_are_taken_along_once() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert run(even)(6) is True
    assert module_text(even)[1].count("def odd") == 1


def test_a_class_takes_along_its_base_and_its_constants() -> None:
    class Base:
        size = 3

        def total(self) -> int:
            return self.size + len(WEIGHTS)

    class Child(Base):
        def __init__(self, size: int = 5) -> None:
            super().__init__()
            self.size = size

    assert run(Child)().total() == Child().total() == 7


def test_annotations_stay_unevaluated() -> None:
    def annotated(text: NotDefinedAnywhere) -> float:  # noqa: F821 - on purpose
        return 1.0

    assert run(annotated)("") == 1.0


def test_an_alias_and_a_decorator_are_taken_along() -> None:
    alias = helper

    @marked
    def decorated(text: str) -> int:
        return alias(text)

    assert run(decorated)("7") == 7


class Length:
    """An object that is called."""

    def __init__(self, most: int, helper: object = None) -> None:
        self.most, self.helper = most, helper

    def __call__(self, completion: str) -> float:
        return min(len(completion), self.most) + (self.helper(completion) if self.helper else 0)

    def doubled(self, completion: str) -> float:
        return 2 * self(completion)


def test_lambdas_partials_and_objects_are_taken_along_as_they_are() -> None:
    limit = 3
    rewards = [lambda text, k=k: helper(text) * k + limit for k in (10, 20)]  # of one text, with other defaults
    limited = lambda text, *, most=limit: min(len(text), most)  # noqa: E731 - a lambda with a name
    both = (lambda text: len(text), lambda text: -len(text))  # two in one line
    made = Length(2, partial(helper))
    uses = partial(lambda scale, text: scale(text) + 1, made)

    def asks(text: str) -> float:
        return made(text) + limited(text)

    things = [*rewards, limited, *both, made, Length(1), made.doubled, uses, partial(max, "8"), asks, partial(made)]
    for thing in things:
        assert run(thing)("7123") == thing("7123"), thing
    names = [module_text(thing)[0] for thing in (*rewards, *both, Length(1), Length(2), partial(helper, "1"))]
    assert len(set(names)) == len(names)
    assert [name.rpartition("_")[0] for name in names] == [*["lambda"] * 4, "Length", "Length", "helper"]


def test_two_things_of_one_name_are_refused() -> None:
    def scaled(by: int) -> object:
        return lambda text: len(text) * by

    assert run(partial(lambda one, text: one(text), scaled(2)))("abc") == 6
    with pytest.raises(ConfigError, match="uses two things named by, of different places"):
        module_text(partial(lambda one, other, text: one(text) + other(text), scaled(2), scaled(3)))


def test_an_object_is_taken_as_it_is_now() -> None:
    made = Length(2)
    first = module_text(made)
    made.most = 5
    assert module_text(made) != first
    assert run(made)("12345678") == 5


@pytest.mark.parametrize("kind", ["array", "attribute", "state", "slots", "no text", "local default"])
def test_what_has_no_text_is_refused_by_name(kind: str) -> None:
    looked_up = np.zeros(3)

    def uses_array() -> float:
        return float(looked_up[0])

    class Slotted:
        __slots__ = ("size",)

        def __call__(self) -> int:
            return 1

    here = object()

    def has_default(text: str, place: object = here) -> float:
        return 1.0

    names: dict[str, object] = {}
    exec("def typed_in(): return 1", names)
    thing, said = {
        "attribute": (Length(2, np.zeros(3)), "the Length object uses helper, a ndarray"),
        "state": (partial(helper, text=np.zeros(2)), "the partial object uses text, a ndarray"),
        "slots": (Slotted(), "the Slotted object uses a value, a Slotted that another process cannot be given"),
        "array": (uses_array, "uses looked_up, a ndarray .*make it inside"),
        "local default": (has_default, "needs here where it is defined, which is local"),
        "no text": (names["typed_in"], "typed_in was typed where Python keeps no text"),
    }[kind]
    with pytest.raises(ConfigError, match=said):
        module_text(thing)


def test_a_class_of_a_notebook_is_found_among_others_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "class Twin:\n    def say(self):\n        return 1\n\nfirst = Twin\n\n"
    cell += "class Twin:\n    def say(self):\n        return 2\n"
    monkeypatch.setitem(linecache.cache, "<cell>", (len(cell), None, cell.splitlines(keepends=True), "<cell>"))
    names: dict[str, object] = {"__name__": "a notebook"}
    exec(compile(cell, "<cell>", "exec"), names)
    assert run(names["first"], "Twin")().say() == 1
    assert run(names["Twin"])().say() == 2
