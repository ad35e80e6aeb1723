"""docs/reference/api.md, made from the source text of the public modules: `python tests/docs/api_page.py`.

The source is parsed and not imported.
"""

import ast
import inspect
from collections.abc import Iterator

from pages import ROOT, fenced, made_by, table, write

PAGE = "reference/api.md"
HEAD = f"""# Python API

{made_by("api_page.py")}

`hone.api` does the work of the commands. The other modules hold the types that a recipe, an environment or a script
works with. Functions that compute advantages and losses are listed under
[functions for credit](algorithms/credit_functions.md) and [functions for losses](algorithms/loss_functions.md).

Shapes are in brackets: `[N]` counts decisions (tokens or actions), `[E]` episodes, `[T]` tokens of all sequences.
"""
MODULES: dict[str, str] = {
    "hone.api.commands": "the commands from Python; import them from `hone.api`",
    "hone.api.decisions": "off-policy estimates and decisions in production; import them from `hone.api`",
    "hone.api.fleet": "fleets of robots: `from hone.api import fleet`",
    "hone.api.match": "matchmaking and difficulty; `from hone.api import match`",
    "hone.api.warehouse": "dispatchers, skills and their versions; `from hone.api import warehouse`",
    "hone.api.results": "results of the commands, in `hone.api`",
    "hone.run.callbacks": "events of callbacks, in `hone.api`",
    "hone.core.episodes": "trajectories",
    "hone.core.credit": "advantages and value targets",
    "hone.core.generation": "requests to a generator, and completions",
    "hone.core.errors": "errors and their exit codes",
    "hone.run.loop": "the training loop",
    "hone.run.job": "a recipe's description, and a runnable job",
    "hone.text.tasks.dataset": "datasets of prompts and examples",
    "hone.control.logs.parquet": "logs of decisions",
    "hone.run.store.metrics": "the metrics of a run",
    "hone.estimators.across_runs": "intervals over several runs",
}
"""Public modules in the order of the page, with what they hold."""


def pages() -> dict[str, str]:
    contents = table(
        ("module", "holds"), [(f"[`{name}`](#{name.replace('.', '')})", text) for name, text in MODULES.items()]
    )
    return {PAGE: "\n\n".join([HEAD.strip(), contents, *(module_section(name) for name in MODULES)]) + "\n"}


def module_section(name: str) -> str:
    path = ROOT / "src" / (name.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = [f"## {name}", paragraph(tree)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and public(node.name):
            parts += [f"### {name.rpartition('.')[2]}.{node.name}", *class_section(node, tree)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and public(node.name):
            parts += [f"### {name.rpartition('.')[2]}.{node.name}", fenced(f"{signature(node)}\n\n{docstring(node)}")]
    return "\n\n".join(part for part in parts if part)


def class_section(node: ast.ClassDef, module: ast.Module) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield fenced(
        f"class {node.name}({bases})\n\n{docstring(node)}" if bases else f"class {node.name}\n\n{docstring(node)}"
    )
    fields = [*inherited_fields(node, module), *fields_of(node)]
    if fields:
        yield table(("field", "type", "meaning"), fields)
    methods = [
        (f"`{signature(item)}`", first_sentence(docstring(item)))
        for item in node.body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and public(item.name)
    ]
    if methods:
        yield table(("method", "meaning"), methods)


def inherited_fields(node: ast.ClassDef, module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Fields of base classes that are imported from modules without a section on this page."""
    bases = {ast.unparse(base) for base in node.bases} - {"Config"}  # it has none
    for item in module.body:
        if isinstance(item, ast.ImportFrom) and str(item.module).startswith("hone.") and item.module not in MODULES:
            for base in bases & {alias.name for alias in item.names}:
                text = (ROOT / "src" / (str(item.module).replace(".", "/") + ".py")).read_text(encoding="utf-8")
                parents = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == base)
                yield from fields_of(next(parents))


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Annotated fields and enumeration members, with the string that follows each."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value) if public(name):
                default = "" if value is None else f" = {ast.unparse(value)}"
                kind = f"`{ast.unparse(annotation)}{default}`"
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if public(name):
                kind = f"`{ast.unparse(value)}`"
            case _:
                continue
        yield f"`{name}`", kind, string_of(after)


def string_of(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return ""


def public(name: str) -> bool:
    return not name.startswith("_")


def docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> str:
    return ast.get_docstring(node) or ""


def paragraph(node: ast.Module) -> str:
    """The first paragraph of a module's docstring, as prose."""
    text = " ".join(docstring(node).split("\n\n")[0].split())
    return text[:1].upper() + text[1:]


def first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The function's head in one line; a property has no parentheses."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    if marks & {"property", "cached_property"}:
        return f"{node.name}{result}"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
    return f"{node.name}({arguments}){result}"


if __name__ == "__main__":
    write(pages())
