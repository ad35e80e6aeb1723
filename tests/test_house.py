"""The rules of the house that ruff, pyright and pytest have no switch for.

A ledger below is a list of exceptions, each with its reason. It may only shrink: an entry no longer needed fails.
"""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args, get_origin

import pytest
from house_measures import House, file_facts, read_house
from syntax_nodes import nodes, statements

import hone
from hone.core.config import Config
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hone"

MEASURES: dict[str, float] = {
    "files under 60 lines": 90,
    "files under 70 lines with one importer": 0,
    "functions used once, of at most 8 lines": 427,
    "protocols with at most one implementer": 12,
    "pairs of classes that share half of their fields": 19,
    "names in docstrings that exist nowhere": 0,
    "locals named found, told, said, given": 0,
    "public names per 1,000 lines": 22.6,
    "own modules imported by a file, nine in ten": 15,
    "own modules imported by a file, at most": 43,
}
"""What a reader of src/hone has to hold in mind, at most. A figure may only be lowered;
`python tests/support/house_measures.py src/hone` prints the present ones, and with `-v` the places."""

GRPO_KEYS = 180
"""Keys of a GRPO config, without the entries of lists and the alternatives of a key; it may only be lowered."""
FILE_LINES = 700
FUNCTION_LINES, FUNCTION_LINES_WITH_REASON = 60, 80
CONFIG_FIELDS = 12
RUN_FIELDS = 18  # a run's own table: what all have, epochs, trackers, alarms, data, preset, cluster, a table a part
HELP_MODULES = 300
"""Of Python, of others and of hone."""
TORCH_FREE = (
    "config",
    "control.replay",
    "control.tables",
    "core",
    "credit",
    "decide",
    "estimators",
    "native",
    "planner",
    "process",
    "run.report",
    "run.store",
    "sandbox",
    "text.games",
    "text.search",
)

# path -> (lines allowed, reason)
LONG_FILES: dict[str, tuple[int, str]] = {
    "src/hone/cli/options.py": (747, "one table of all commands and their options"),
}
# path::name -> (lines allowed, at most 80, reason)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}
# path::name -> reason
FORBIDDEN_CALLS: dict[str, str] = {
    f"src/hone/sandbox/program.py::{name}": "it runs programs, in a confined process"
    for name in ("compile", "eval", "exec")
}
# path::name -> reason
OPEN_DOORS: dict[str, str] = {}
# Config class -> (fields allowed, reason)
WIDE_CONFIGS: dict[str, tuple[int, str]] = {
    "hone.decide.gateway.service_config.ServiceTableConfig": (13, "two rules say when the safe action is taken"),
    "hone.decide.monitor.config.MonitorConfig": (13, "a cycle of the rewards stands beside their run length"),
    "hone.text.tasks.task.TaskConfig": (13, "a source of prompts, and how they are asked as chats"),
    "hone.text.answer_data.AnswerTaskConfig": (14, "the same, with the use of its answers"),
    "hone.text.dialogues.config.DialogueTaskConfig": (17, "prompts, their chats and dialogues are one table"),
    "hone.run.job.RunSettings": (
        16,
        "ranks and their cut of a model, a start from another policy, callbacks and kept rollouts stand beside device",
    ),
    "hone.control.environments.make.GymConfig": (
        16,
        "an environment, how its spaces are read and filled up, how its processes run",
    ),
    "hone.text.rollout_config.RolloutConfig": (
        18,
        "limits of a dialogue stand beside those of an answer, and the engine's sleep",
    ),
}

GUESSING = {"getattr", "hasattr", "setattr", "delattr"}
RUNNING_TEXT = {"eval", "exec", "compile", "__import__"}
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
UNSAFE_ATTRIBUTES = {("torch", "load"), ("torch", "save"), ("np", "save"), ("numpy", "save")}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if ".peers" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """A function in a file: facts, not a syntax tree, which would stay in memory."""

    file: str
    name: str
    lines: int
    takes_any_keyword: bool

    @property
    def key(self) -> str:
        return f"{self.file}::{self.name}"


@cache
def functions() -> tuple[FunctionFacts, ...]:
    return tuple(
        FunctionFacts(name_of(path), node.name, lines_of(node), node.args.kwarg is not None)
        for path in python_files("src", "tests", "benchmarks", "examples")
        for node in statements(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the last line, without the docstring: nobody should cut a docstring to fit."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def over_the_measure(sizes: dict[str, int], measure: int, ledger: dict[str, tuple[int, str]]) -> list[str]:
    """What is too long, and which entries of the ledger are not needed any more."""
    faults = [
        f"{name}: {size} lines, allowed {ledger.get(name, (measure, ''))[0]}"
        for name, size in sizes.items()
        if size > ledger.get(name, (measure, ""))[0]
    ]
    stale = [f"{name}: strike it from the ledger" for name in ledger if sizes.get(name, 0) <= measure]
    slack = [
        f"{name}: lower its entry to {sizes[name]}"
        for name, (limit, _) in ledger.items()
        if measure < sizes.get(name, 0) < limit
    ]
    return faults + stale + slack


def test_files_fit_the_measure() -> None:
    sizes = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "tests", "benchmarks", "examples")
    }
    assert over_the_measure(sizes, FILE_LINES, LONG_FILES) == []


def test_functions_fit_on_a_screen() -> None:
    sizes: dict[str, int] = {}
    for function in functions():
        sizes[function.key] = max(sizes.get(function.key, 0), function.lines)
    assert over_the_measure(sizes, FUNCTION_LINES, LONG_FUNCTIONS) == []
    assert all(lines <= FUNCTION_LINES_WITH_REASON and reason for lines, reason in LONG_FUNCTIONS.values())


def test_there_is_no_more_to_know_than_there_was() -> None:
    house = read_house(SOURCE)
    values, places = house.measures(), house.places()
    assert values.keys() == MEASURES.keys()
    over = [name for name, value in values.items() if value > MEASURES[name]]
    assert [f"{name}: {values[name]}, at most {MEASURES[name]}: {places.get(name, [])[:50]}" for name in over] == []
    for name in values:
        print(
            f"{name}: {values[name]}"
            + (f" (lower the limit of {MEASURES[name]})" if values[name] < MEASURES[name] else "")
        )


def test_a_run_has_no_more_keys_than_it_had() -> None:
    keys = list(config_keys(load_recipe("grpo").config))
    assert len(keys) <= GRPO_KEYS, keys
    assert {"user_code.workers", "evaluation.task.options", "learner.ratio.correction"} <= set(keys)


def config_keys(config: type[Config], place: str = "") -> Iterator[str]:
    """Dotted keys of a config. A list, and a key that takes one of several tables, is one key."""
    for name, field in config.model_fields.items():
        tables = [one for one in get_args(field.annotation) or [field.annotation] if one is not type(None)]
        is_list = get_origin(field.annotation) in (list, tuple)
        if len(tables) == 1 and not is_list and isinstance(tables[0], type) and issubclass(tables[0], Config):
            yield from config_keys(tables[0], f"{place}{name}.")
        else:
            yield f"{place}{name}"


def test_the_measures_see_what_they_count() -> None:
    text = '''
from hone.core.errors import HoneError

def once():
    """Reads `nothing_of_this_name` and `found`."""
    found = 1
    return found

def twice():
    return once(), twice(), twice

class Reader(Protocol):
    def read(self): ...

class _One:
    a: int
    b: int
    c: int
    d: int

class Other:
    a: int
    b: int
    c: int
    d: int
    e: int
    f: ClassVar[int]
'''
    house = House(
        [file_facts("a.py", text, "hone"), file_facts("__init__.py", "from hone.a import once\n", "hone")], "hone"
    )
    assert house.places() == {
        "files under 60 lines": ["a.py"],
        "files under 70 lines with one importer": ["a.py"],
        "functions used once, of at most 8 lines": ["a.py: once"],
        "protocols with at most one implementer": ["Reader"],
        "pairs of classes that share half of their fields": ["a.py: _One, a.py: Other"],
        "names in docstrings that exist nowhere": ["a.py: once: nothing_of_this_name"],
        "locals named found, told, said, given": ["a.py: found"],
    }
    assert house.measures()["own modules imported by a file, at most"] == 1
    assert house.measures()["public names per 1,000 lines"] == round(4000 / (text.count("\n") + 1), 1)


def forbidden_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in GUESSING | RUNNING_TEXT:
            return [name]
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in UNSAFE_ATTRIBUTES:
            return [f"{owner}.{name}"]
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases if alias.name.split(".")[0] in UNSAFE_MODULES]
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNSAFE_MODULES:
            return [module]
        case _:
            return []


def forbidden_calls(tree: ast.AST) -> list[tuple[str, int]]:
    """Names that guess at an object's shape, run text, or read a format that can run code, with their lines."""
    return [
        (name, node.lineno)
        for node in nodes(tree)
        if isinstance(node, ast.stmt | ast.expr)
        for name in forbidden_in(node)
    ]


def test_the_check_sees_what_it_forbids() -> None:
    refused = ["getattr(a, 'b')", "import pickle", "from pickle import loads", "torch.load('x')", "exec('1')"]
    allowed = ["model.eval()", "re.compile('x')", "import json", "store.load('x')"]
    assert all(forbidden_calls(ast.parse(line)) for line in refused)
    assert not any(forbidden_calls(ast.parse(line)) for line in allowed)


def test_nothing_guesses_runs_text_or_unpickles() -> None:
    words = re.compile("|".join(GUESSING | RUNNING_TEXT | UNSAFE_MODULES | {name for _, name in UNSAFE_ATTRIBUTES}))
    found = {
        f"{name_of(path)}::{name}": line
        for path in python_files("src")
        if words.search(text := path.read_text(encoding="utf-8"))
        for name, line in forbidden_calls(ast.parse(text))
    }
    assert [f"{key} (line {line})" for key, line in found.items() if key not in FORBIDDEN_CALLS] == []
    assert [key for key in FORBIDDEN_CALLS if key not in found] == [], "strike these from the ledger"


def test_public_doors_name_their_arguments() -> None:
    found = {
        function.key
        for function in functions()
        if function.file.startswith("src/") and function.takes_any_keyword and not function.name.startswith("_")
    }
    assert sorted(found - OPEN_DOORS.keys()) == [], "these take **kwargs"
    assert sorted(OPEN_DOORS.keys() - found) == [], "strike these from the ledger"


def in_a_new_python(code: str, place: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def modules_of(folder: str) -> list[str]:
    return [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((SOURCE / folder.replace(".", "/")).rglob("*.py"))
    ]


def test_the_front_door_is_light() -> None:
    names = ["hone", "hone.cli.main", *(name for folder in TORCH_FREE for name in modules_of(folder))]
    imports = "\n".join(f"import {name}" for name in names)
    answer = in_a_new_python(
        f"import sys\n{imports}\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert answer.stderr == ""
    assert answer.stdout.strip() == "[]", "an import of these folders brings in torch or transformers"


def test_help_loads_little() -> None:
    program = "import sys; from hone.cli.main import main; code = main(['--help']); print(len(sys.modules), code)"
    answer = in_a_new_python(program)
    assert answer.returncode == 0, answer.stderr
    assert "train" in answer.stdout
    modules, code = map(int, answer.stdout.splitlines()[-1].split())
    assert code == 0
    assert modules <= HELP_MODULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """A short run, the packages that it has no use for, and the modules of hone that it may load."""

    config: str
    never: tuple[str, ...]
    modules: int


WINGS = {
    "control": Wing(
        config="""recipe = "ppo"
steps = 1
env = { id = "CartPole-v1", num_envs = 2 }
evaluation = { episodes = 2 }
""",
        never=("hone.text", "hone.engine", "hone.rewards", "hone.models.language", "hone.decide"),
        modules=219,
    ),
    "text": Wing(
        config="""recipe = "grpo"
steps = 1
task = { source = "questions.jsonl" }
rewards.functions = [{ use = "exact_match" }]
rollout = { prompts_per_step = 2, samples_per_prompt = 2, max_tokens = 2 }
learner = { lr = 1e-4 }
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
""",
        never=("hone.control", "hone.decide"),
        modules=281,
    ),
    "decisions": Wing(
        config="""recipe = "epsilon_greedy"
steps = 20
arms = { kind = "linear", arms = 4, features = 3 }
""",
        never=("hone.text", "hone.engine", "hone.rewards", "hone.models", "hone.control"),
        modules=153,
    ),
}


@pytest.mark.parametrize("name", WINGS)
def test_a_run_loads_no_other_wing(name: str, tmp_path: Path) -> None:
    wing = WINGS[name]
    (tmp_path / "run.toml").write_text(wing.config, encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 2, encoding="utf-8")
    program = (
        "import sys; from hone.cli.main import main; code = main(['train', 'run.toml']); print(code, *sys.modules)"
    )
    answer = in_a_new_python(program, tmp_path)
    code, *loaded = answer.stdout.splitlines()[-1].split()
    assert code == "0", answer.stderr
    known = set(loaded)
    assert set(wing.never) & known == set(), "what a run of this wing has no use for"
    modules = sum(one == "hone" or one.startswith("hone.") for one in known)
    print(f"{name}: {modules} modules of hone")
    assert modules <= wing.modules


def configs() -> list[type[Config]]:
    for module in pkgutil.walk_packages(hone.__path__, prefix="hone."):
        importlib.import_module(module.name)
    found: list[type[Config]] = []
    waiting: list[type[Config]] = [Config]
    while waiting:
        children = waiting.pop().__subclasses__()
        found += [child for child in children if child.__module__.startswith("hone.")]
        waiting += children
    return sorted(set(found), key=lambda config: config.__name__)


@pytest.mark.filterwarnings("ignore")  # of the libraries that are imported here for the first time
def test_configs_explain_themselves_and_stay_small() -> None:
    faults: list[str] = []
    for config in configs():
        name = f"{config.__module__}.{config.__name__}"
        measure = RUN_FIELDS if issubclass(config, RunConfig) else CONFIG_FIELDS
        limit = WIDE_CONFIGS.get(name, (measure, ""))[0]
        if len(config.model_fields) > limit:
            faults.append(f"{name}: {len(config.model_fields)} fields, allowed {limit}")
        faults += [
            f"{name}.{field}: no sentence under it"
            for field, info in config.model_fields.items()
            if not (info.description or "").strip() and not field.startswith("_")
        ]
    assert faults == []


def test_imports_only_fall() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    answer = subprocess.run(
        [*command, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-2000:]


def test_every_torch_free_folder_is_under_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    held = next(one["source_modules"] for one in contracts if "torch" in one.get("forbidden_modules", ()))
    there = [f"hone.{folder}" for folder in TORCH_FREE if (SOURCE / folder.replace(".", "/") / "__init__.py").exists()]
    assert sorted(held) == sorted(there), "name each torch-free folder that exists in pyproject.toml"


def project_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    # Put together here, so that this file does not find itself.
    words = re.compile("|".join("/" + place + "/" for place in ("work", "root", "tmp/brief", "opt/wheels")))
    faults: list[str] = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        faults += [f"{name_of(path)}: {match.group()}" for match in words.finditer(text)]
    assert faults == []


def test_the_base_install_needs_no_extra() -> None:
    """Packages of the extras are imported where they are asked for: every recipe and command opens without them."""
    program = """
import importlib, pkgutil, sys

EXTRAS = "starlette uvicorn mcp openai websockets pandas h5py minari ray optuna tensorboard".split()

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from hone.recipes.registry import load_recipe, recipe_names
import hone.cli.commands
for name in recipe_names():
    load_recipe(name)
for module in pkgutil.iter_modules(hone.cli.commands.__path__):
    importlib.import_module("hone.cli.commands." + module.name)
"""
    answer = in_a_new_python(program)
    assert answer.returncode == 0, answer.stderr
