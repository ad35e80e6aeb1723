"""Working copy in which mutants are made and tried: sources, tests and settings of the project.

Belongs here: what is copied, and what is changed for the run. Decorators of functions are applied in a statement of
their own, because mutmut leaves decorated functions out, and hypothesis does not shrink the examples that kill one.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import libcst as cst
from verdicts import ROOT, WORK

OTHER_PROCESSES = (
    "tests/objectives/test_objectives_answers_partition.py::test_two_ranks",
    "tests/objectives/test_objectives_policy_partition.py::test_two_ranks",
    "tests/credit/test_credit_invariants.py::test_work_does_not_grow_with_the_number_of_decisions",
)
"""Tests that start processes or count calls."""
OTHER_FILES = ("tests/credit/test_credit_docs.py", "tests/objectives/test_objectives_shapes.py")
"""Tests that read the documentation, or start Python anew."""
WITHOUT_SHRINKING = """
from hypothesis import Phase

settings.register_profile(
    "mutants", parent=settings.get_profile("all"), phases=(Phase.explicit, Phase.generate), database=None
)
settings.load_profile("mutants")
"""
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = [{sources}]
do_not_mutate_patterns = ['^\\s*raise ']
pytest_add_cli_args = [{options}]
pytest_add_cli_args_test_selection = [{tests}]
use_git_change_detection = false
track_dependencies = false
timeout_constant = 4.0
"""


class LateDecorators(cst.CSTTransformer):
    """`@d def f` as `def f` and `f = d(f)`."""

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.FlattenSentinel[cst.BaseStatement]:
        value: cst.BaseExpression = cst.Name(updated_node.name.value)
        for decorator in reversed(updated_node.decorators):
            value = cst.Call(func=decorator.decorator, args=[cst.Arg(value)])
        if isinstance(value, cst.Name):
            return updated_node
        assignment = cst.Assign([cst.AssignTarget(cst.Name(updated_node.name.value))], value)
        return cst.FlattenSentinel([updated_node.with_changes(decorators=[]), cst.SimpleStatementLine([assignment])])


def with_late_decorators(source: str) -> str:
    """The same module, with decorators of functions applied after their definitions."""
    return cst.parse_module(source).visit(LateDecorators()).code


def prepare(folders: Sequence[str]) -> Path:
    """Bring the working copy up to date; files that did not change keep their verdicts. Returns its folder."""
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            place = path.relative_to(ROOT)
            mutated = path.suffix == ".py" and any(place.is_relative_to(Path("src/hone", name)) for name in folders)
            content = with_late_decorators(path.read_text(encoding="utf-8")).encode() if mutated else path.read_bytes()
            _write_changed(WORK / place, content)
            if not mutated:
                _write_changed(WORK / "mutants" / place, content)
    for part in ("support", "docs", *folders):
        for path in (ROOT / "tests" / part).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                _write_changed(WORK / path.relative_to(ROOT), path.read_bytes())
    for name in OTHER_FILES:
        (WORK / name).unlink(missing_ok=True)
        (WORK / "mutants" / name).unlink(missing_ok=True)
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    _write_changed(WORK / "tests" / "conftest.py", (conftest + WITHOUT_SHRINKING).encode())
    _write_changed(WORK / "pyproject.toml", settings(folders).encode())
    return WORK


def settings(folders: Sequence[str]) -> str:
    """The project's settings of pytest with those of mutmut."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *(word for test in OTHER_PROCESSES for word in ("--deselect", test)),
    ]
    return text + SETTINGS.format(
        sources=", ".join(f'"src/hone/{name}/*"' for name in folders),
        options=", ".join(f'"{word}"' for word in options),
        tests=", ".join(f'"tests/{name}"' for name in folders),
    )


def _write_changed(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def clear() -> None:
    """Forget all verdicts."""
    shutil.rmtree(WORK, ignore_errors=True)
