"""docs/reference/metrics.md, made from run/store/metrics.toml and the source: `python tests/docs/metrics_page.py`.

The catalogue holds each metric's unit and meaning. The modules that write it are found in the source by its name.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache

from metric_names import catalogue, variable_parts
from pages import ROOT, made_by, table, write

sys.path.append(str(ROOT / "tests" / "support"))  # as a script
from syntax_nodes import nodes

PAGE = "reference/metrics.md"
SOURCE = ROOT / "src" / "hone"
NAME = re.compile(r"[a-z_0-9]+/[a-z_0-9]+")
PIECES = re.compile(r"(?:(?:time/)?judge/\{\}|eval/(?:\{\}(?:/seat\{\})?|seat\{\})|[a-z_0-9{}]+)/[a-z_0-9{}]+")
HEAD = f"""# Metrics

{made_by("metrics_page.py")}

A run writes one line per `run.log_every` steps to `metrics.jsonl`: the means over these steps. A metric appears where
its part of hone takes part in the run. Metrics of a loss are means over the decisions (tokens, actions) of the step's
last epoch; names that end in `_max` are maxima, and names that end in `_ess` effective sample sizes.

Names that begin with `time/` depend on the clock. All other metrics are equal in two runs with the same config, seed
and machine.

The column *written by* names the modules of `hone`. Every run of the test-suite checks its metrics against this page.
"""


def pages() -> dict[str, str]:
    places = written_by()
    parts = [HEAD.strip()]
    for name, values in variable_parts().items():
        parts.append(f"`{{{name}}}` is one of {', '.join(f'`{value}`' for value in values)}.")
    for group, own in catalogue().items():
        rows = [
            (f"`{name}`", unit, meaning, modules(places.get(plain(name), set())))
            for name, (unit, meaning) in own.items()
        ]
        parts += [f"## {group}", table(("metric", "unit", "meaning", "written by"), rows)]
    return {PAGE: "\n\n".join(parts) + "\n"}


def modules(found: set[str]) -> str:
    shown = sorted(found)[:3]
    return ", ".join(f"`{name}`" for name in shown) + (f" and {len(found) - len(shown)} more" if len(found) > 3 else "")


def plain(name: str) -> str:
    """A pattern's name as the scan of the source sees it: `{}` for each part that varies."""
    return re.sub(r"\{\w+\}", "{}", name)


@cache
def written_by() -> dict[str, set[str]]:
    """Metric names in the source -> the modules that hold them."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if module.startswith(("lab.", "cli.", "run.report.dialogue_section", "run.store.metrics")):
            continue  # they read metrics, under old names too; the lab's names are of random streams
        for name in names_in(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(module)
    return found


def names_in(tree: ast.AST) -> Iterator[str]:
    """Strings that look like a metric, and f-strings with `{}` for what is put in."""
    every = list(nodes(tree))
    inside = {id(part) for node in every if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in every:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in inside and NAME.fullmatch(text):
                yield text
            case ast.JoinedStr(values=values):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values)
                if PIECES.fullmatch(text):
                    yield text


if __name__ == "__main__":
    write(pages())
