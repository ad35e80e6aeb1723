"""The rules by which a surviving mutant is the same function, and the list of the others: each has a reason, and stands
in the sources. The mutation run itself is `make mutants`."""

import operator
from pathlib import Path
from typing import Any

import pytest
from boundaries import listed_boundaries
from comparison_sites import instrumented
from equivalents import Survivor, listed_survivors, same_by_rule
from verdicts import changed_lines, judge

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("np.maximum(a, 1.0)", "np.maximum(1.0, a)"),
        ("torch.minimum(first, second)", "torch.minimum(second, first)"),
        ("min(max(a, b), c)", "min(c, max(b, a))"),
        ("np.clip(x, low, high)", "np.clip(low, x, high)"),
        ("x.astype(np.float64)", "x.astype(None)"),
        ("(a + b).exp()", "(b + a).exp()"),
        ("x.sum(dim=-1)", "x.sum(dim=+1)"),
        ("{'value/mean': value.detach()}", "{'value/mean': value}"),
    ],
)
def test_what_is_the_same_by_a_rule(before: str, after: str) -> None:
    assert same_by_rule(f"def function(x):\n    return {before}", f"def function(x):\n    return {after}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("np.maximum(a, 1.0)", "np.minimum(a, 1.0)"),
        ("np.clip(x, low, high)", "np.clip(x, high, low)"),
        ("x.astype(np.float32)", "x.astype(None)"),
        ("a - b", "b - a"),
        ("a - b", "a + b"),
        ("x.sum(dim=-1)", "x.sum(dim=-2)"),
        ("weight.detach() * loss", "weight * loss"),
        ("np.where(dead, 0.0, x)", "np.where(0.0, dead, x)"),
        ("torch.where(kept, a, b)", "torch.where(kept, b, a)"),
    ],
)
def test_what_is_another_function(before: str, after: str) -> None:
    assert not same_by_rule(f"def function(x):\n    return {before}", f"def function(x):\n    return {after}")


def test_a_survivor_is_known_by_the_lines_that_it_changes() -> None:
    before, after = "def function(a):\n    b = a + 1\n    return b\n", "def function(a):\n    b = a + 2\n    return b\n"
    found = changed_lines("hone.credit.group.x_length_baseline__mutmut_7", before, after)
    assert found == Survivor(function="credit.group.length_baseline", was="b = a + 1", becomes="b = a + 2")
    method = changed_lines("hone.credit.moments.xǁReturnScaleǁupdate__mutmut_3", before, after)
    assert method.function == "credit.moments.ReturnScale.update"


def test_every_listed_survivor_stands_in_the_sources_once() -> None:
    listed = listed_survivors()
    assert len(listed) > 10
    for survivor in listed:
        place, _, _ = survivor.function.rpartition(".")
        path = ROOT / "src" / "hone" / f"{place.replace('.', '/')}.py"
        path = path if path.is_file() else path.parent.with_suffix(".py")
        lines = {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
        gone = [line for line in survivor.was.split("\n") if line not in lines]
        assert gone == [], f"{survivor.function} has changed: try it again, or take its entry out of survivors.toml"


def test_comparisons_become_calls_that_give_the_same_answers() -> None:
    """Plain ones, chains that stop early, and the one that is exchanged with its neighbour."""
    source = (
        "def one(a, b):\n    return a < b\n"
        "def chain(values):\n    return 0 <= values.pop() < 3 <= values.pop()\n"
        "def other(a, b):\n    return a == b or a is None\n"
    )
    text, sites = instrumented(source, "credit/made_up.py", 7)
    assert [(site.number, site.operator, site.comparison, site.line) for site in sites] == [
        (7, "<", "a < b", 2),
        (8, "<=", "0 <= values.pop() < 3 <= values.pop() (1st)", 4),
        (9, "<", "0 <= values.pop() < 3 <= values.pop() (2nd)", 4),
        (10, "<=", "0 <= values.pop() < 3 <= values.pop() (3rd)", 4),
    ]
    exchanged = -1

    def compared(number: int, sign: str, left: int, right: int) -> bool:
        nearby = {"<": operator.le, "<=": operator.lt}
        exact = {"<": operator.lt, "<=": operator.le}
        return (nearby if number == exchanged else exact)[sign](left, right)

    code: dict[str, Any] = {"_noted_comparison": compared}
    exec(text.partition("\n")[2], code)
    assert [code["one"](1, 2), code["one"](2, 2), code["one"](3, 2)] == [True, False, False]
    assert [code["chain"]([3, 2]), code["chain"]([2, 2]), code["other"](None, 1)] == [True, False, True]
    left = [9, 3]
    assert not code["chain"](left)
    assert left == [9]  # the second call of pop is not reached
    exchanged = 7
    assert code["one"](2, 2)
    exchanged = 9
    assert code["chain"]([3, 3])


def test_every_listed_boundary_stands_in_the_sources() -> None:
    listed = listed_boundaries()
    assert len({(one.module, one.comparison) for one in listed}) == len(listed)
    for module in {one.module for one in listed}:
        source = (ROOT / "src" / "hone" / module).read_text(encoding="utf-8")
        here = {site.comparison for site in instrumented(source, module, 0)[1]}
        gone = [one.comparison for one in listed if one.module == module and one.comparison not in here]
        assert gone == [], f"{module} has changed: run boundaries.py, or take the entry out of boundaries.toml"


def test_a_module_is_judged_by_the_exit_codes_of_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, out of time, the same by a rule, a survivor, no test at all, and not tried."""
    monkeypatch.setattr("verdicts.WORK", tmp_path)
    folder = tmp_path / "mutants" / "src" / "hone" / "credit"
    folder.mkdir(parents=True)
    bodies = ["a + b", "a - b", "a * b", "b + a", "a / b", "a % b", "a"]
    names = ["x_f__mutmut_orig", *(f"x_f__mutmut_{number}" for number in range(1, 7))]
    text = "".join(f"def {name}(a, b):\n    return {body}\n" for name, body in zip(names, bodies, strict=True))
    (folder / "group.py").write_text(text, encoding="utf-8")
    spans = {name: [2 * place + 1, 2 * place + 2] for place, name in enumerate(names)}
    (folder / "group.py.spans").write_text(f'{{"spans": {str(spans).replace(chr(39), chr(34))}}}', encoding="utf-8")
    codes = {f"hone.credit.group.{name}": code for name, code in zip(names[1:], (1, -24, 0, 0, 33, None), strict=True)}
    found = judge("src/hone/credit/group.py", codes)
    assert (found.killed, found.timeouts, found.equivalent, found.unchecked) == (2, 1, 1, 1)
    assert [one.becomes for one in found.survivors.values()] == ["return a / b", "return a % b"]
