"""Verdicts of a mutation run: what mutmut wrote into the working copy, sorted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import ndiff
from pathlib import Path

from equivalents import Survivor, same_by_rule

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".mutants"
"""Working copy of the run."""
KILLED = (1, 3)
"""Exit codes of pytest: a test failed, or pytest itself did."""
STOPPED = (-24, 24, 36, 152, 255, -9, -11)
"""Exit codes of tests that ran out of time, or that ended the process."""
Codes = Mapping[str, int | None]
"""Mutant -> exit code of its tests; None: not tried."""


@dataclass
class MutationResult:
    """Verdicts of one module."""

    killed: int = 0
    timeouts: int = 0
    equivalent: int = 0
    unchecked: int = 0
    survivors: dict[str, Survivor] = field(default_factory=dict[str, Survivor])
    """By mutant."""


def verdicts() -> dict[str, Codes]:
    """Module -> its mutants with their exit codes."""
    found = {}
    for path in sorted((WORK / "mutants" / "src" / "hone").rglob("*.py.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        if codes:
            found[path.relative_to(WORK / "mutants").as_posix().removesuffix(".meta")] = codes
    return found


def judge(path: str, codes: Codes) -> MutationResult:
    """Sort the mutants of a module."""
    result, generated = (
        MutationResult(),
        (WORK / "mutants" / path).read_text(encoding="utf-8").splitlines(keepends=True),
    )
    spans = json.loads((WORK / "mutants" / f"{path}.spans").read_text(encoding="utf-8"))["spans"]
    for name, code in codes.items():
        if code is None:
            result.unchecked += 1
        elif code in (*KILLED, *STOPPED):
            result.killed += 1
            result.timeouts += code in STOPPED
        else:
            mutant = name.rpartition(".")[2]
            original = mutant.rpartition("_mutmut_")[0] + "_mutmut_orig"
            before, after = ("".join(generated[spans[one][0] - 1 : spans[one][1]]) for one in (original, mutant))
            name_only = original.removesuffix("__mutmut_orig").rpartition("ǁ")[2].removeprefix("x_")
            before, after = before.replace(original, name_only), after.replace(mutant, name_only)
            if same_by_rule(before, after):
                result.equivalent += 1
            else:
                result.survivors[name] = changed_lines(name, before, after)
    return result


def changed_lines(name: str, before: str, after: str) -> Survivor:
    """The survivor, by the lines that differ."""
    lines = list(ndiff([line.strip() for line in before.splitlines()], [line.strip() for line in after.splitlines()]))
    module, _, function = name.rpartition("__mutmut_")[0].removeprefix("hone.").rpartition(".")
    return Survivor(
        function=f"{module}.{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}",
        was="\n".join(line[2:] for line in lines if line.startswith("- ")),
        becomes="\n".join(line[2:] for line in lines if line.startswith("+ ")),
    )
