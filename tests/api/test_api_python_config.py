"""Configs made of Python objects train as the same config in a file does."""

import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pandas
import pyarrow
import pytest
from importable_code import ImportableCorridor, starts_with_digit
from short_runs import SHORT

from hone.api import python_config, read_result, sample, train, train_seeds
from hone.api.python_config import document_of
from hone.cli.main import main
from hone.core.errors import ConfigError, HoneError
from hone.recipes.registry import load_recipe
from hone.run.store.metrics import without_clock_metrics

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
GRPO = {
    "recipe": "grpo",
    "steps": 2,
    "model": {
        "new": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64}
    },
    "task": {"source": ROWS},
    "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2, "max_tokens": 3},
    "learner": {"lr": 1e-3},
    "run": {"certify": False},
}
PPO = {
    "recipe": "ppo",
    "name": "short",
    "steps": 3,
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "evaluation": {"episodes": 2, "every": 1},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def figures(run: Path) -> list[str]:
    return without_clock_metrics((run / "metrics.jsonl").read_text().splitlines())


def test_a_dictionary_gives_the_bits_of_the_same_file_and_resumes_it(tmp_path: Path) -> None:
    Path("short.toml").write_text(SHORT)
    assert main(["train", "short.toml", "--runs", "file"]) == 0
    result = train(PPO, runs="python")
    assert figures(result.folder) == figures(Path("file/short"))
    with pytest.raises(ConfigError, match="resume=True continues it, a new name starts another"):
        train(PPO, runs="python")
    assert train(PPO, ["steps=4"], runs="python", resume=True).step == 4


def test_a_config_object_is_a_config() -> None:
    config = load_recipe("ppo").config.model_validate({**PPO, "steps": 1})
    assert train(config).folder == Path("runs/short")


def test_seeds_of_a_dictionary() -> None:
    found = train_seeds({**PPO, "steps": 1}, 2)
    assert [run.name for run in found.runs] == ["seed_0", "seed_1"]
    assert repr(found).startswith("<runs/short: 2 seeds, interquartile mean ")
    assert list(found.scores()["run"]) == ["seed_0", "seed_1"]


def test_functions_of_every_kind_score(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = "2"

    def contains(completions: list[str], answer: list[str]) -> list[float]:
        return [float(wanted in text or right in text) for text, right in zip(completions, answer, strict=True)]

    functions = [starts_with_digit, {"use": contains, "weight": 0.5}, "exact_match"]
    scored = {**GRPO, "rewards": {"functions": functions}}
    result = train(scored)
    assert {"rewards/starts_with_digit", "rewards/contains", "rewards/exact_match"} <= set(result.metrics().columns)
    assert (result.folder.name, len(result.metrics())) == ("grpo", 2)
    assert set(result.samples()["prompt"]) <= {row["prompt"] for row in ROWS}
    again = train(scored, ["steps=3"], resume=True)
    assert again.step == 3
    found = sample(again, prompt="1+1=", count=2)
    assert (len(found), found[0].prompt, found[0].answer) == (2, found.table()["prompt"][0], found.table()["answer"][0])
    assert repr(found) == "<2 answers>"
    assert "grpo" in repr(again)
    assert len(repr(again)) < 200
    assert "report.html" in again._repr_html_()


def test_a_dataset_is_rows_a_dataframe_or_a_table() -> None:
    tables = [ROWS, tuple(ROWS), pandas.DataFrame(ROWS), pyarrow.Table.from_pylist(ROWS)]
    sources = []
    for rows in tables:
        values = document_of({**GRPO, "task": {"source": rows}}, [], Path("runs")).values
        sources.append(values["task"]["source"])
        assert Path(sources[-1]).is_file()
    assert sources[0] == sources[1]
    counted = document_of({"task": {"source": [{"prompt": "1", "n": np.int64(3)}]}}, [], Path("runs")).values
    assert Path(counted["task"]["source"]).read_text() == '{"prompt": "1", "n": 3}\n'
    assert sources[0].endswith(".jsonl")
    assert sources[2].endswith(".parquet")
    assert pandas.read_parquet(sources[2]).to_dict("records") == ROWS
    result = train({**GRPO, "steps": 1, "task": {"source": tables[2]}, "rewards": {"functions": ["exact_match"]}})
    assert set(result.samples()["prompt"]) <= {row["prompt"] for row in ROWS}


class Stream:
    """As `datasets.IterableDataset`: rows anew for each iteration, and no length."""

    def __iter__(self) -> Iterator[dict]:
        return iter(ROWS)


def endless() -> Iterator[dict]:
    for number in itertools.count():
        yield {"prompt": f"{number}+1=", "answer": str(number + 1)}


def test_a_dataset_is_a_stream_of_rows() -> None:
    def source(rows: object, **more: object) -> str:
        return document_of({"task": {"source": rows, **more}}, [], Path("runs")).values["task"]["source"]

    listed = source(ROWS)
    streams = [
        (row for row in ROWS),
        Stream(),
        iter(ROWS),
        lambda: iter(ROWS),
        Stream().__iter__,
        Stream,
        map(dict, ROWS),
    ]
    assert {source(one) for one in streams} == {listed}
    assert {source(one, size=4) for one in (endless(), endless, partial(itertools.islice, endless(), 9))} == {listed}
    assert len(list(Path("runs/.python").iterdir())) == 1


def test_a_stream_is_written_row_by_row() -> None:
    rows = ({"prompt": f"{number}" + "x" * 1000} for number in range(10_000))  # 10 MB
    tracemalloc.start()
    values = document_of({"task": {"source": rows}}, [], Path("runs")).values
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Path(values["task"]["source"]).stat().st_size > 10_000_000
    assert peak < 1_000_000


def broken() -> Iterator[dict]:
    yield ROWS[0]
    raise KeyError("no such row")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (iter([]), "task.source: it gave no rows; an iterator gives its rows once"),
        ([], "task.source: it gave no rows"),
        (endless, "task.source: more than 5 rows, and no end in sight; say how many to take by task.size"),
        (iter([{"prompt": "a"}, {"prompt": object()}]), "task.source: its rows must be dicts .* row 2: a object is"),
        (lambda name: [], "a function that gives rows is called without arguments, and this one needs name"),
        (broken, "task.source: its iterator failed after 1 rows with KeyError: 'no such row'"),
        (lambda: Path("nowhere").read_text(), "task.source: its iterator failed after 0 rows with FileNotFoundError"),
    ],
)
def test_streams_that_cannot_be_taken(source: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_config, "MAX_STREAM_ROWS", 5)
    with pytest.raises(HoneError, match=message):
        train({**GRPO, "task": {"source": source}, "rewards": {"functions": ["exact_match"]}})
    assert not list(Path("runs").glob(".python/*"))


def test_a_stream_resumes_exactly_or_not_at_all() -> None:
    sft = {**{key: GRPO[key] for key in ("model", "learner", "run")}, "recipe": "sft", "batch": 2}
    rows = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
    train({**sft, "steps": 1, "task": {"source": iter(rows)}})
    again = train({**sft, "steps": 2, "task": {"source": iter(rows)}}, resume=True)
    plain = train({**sft, "steps": 2, "name": "plain", "task": {"source": rows}})
    assert figures(again.folder) == figures(plain.folder)
    with pytest.raises(ConfigError, match=r"task\.source"):
        train({**sft, "steps": 3, "task": {"source": iter(rows[::-1])}}, resume=True)


def test_a_world_is_its_class_with_arguments_bound() -> None:
    class Doors:
        def __init__(self, doors: int = 3) -> None:
            self.doors = doors

    sources = [
        document_of({"task": {"source": one}}, [], Path("runs")).values["task"]["source"]
        for one in (Doors, partial(Doors, doors=4), ImportableCorridor)
    ]
    assert sources[0].startswith("dialogue:runs/.python/Doors_")
    assert sources[1].startswith("dialogue:runs/.python/Doors_")
    assert sources[0] != sources[1]
    assert sources[2] == "dialogue:importable_code:ImportableCorridor"


def test_lambdas_partials_and_objects_score() -> None:
    class Wanted:
        def __init__(self, digit: str) -> None:
            self.digit = digit

        def __call__(self, completions: list[str], **columns: object) -> list[float]:
            return [float(self.digit in text) for text in completions]

    def contains(completion: str, digit: str) -> float:
        return float(digit in completion)

    functions = [lambda completion: float("2" in completion), partial(contains, digit="2"), Wanted("2"), Wanted("3")]
    metrics = train({**GRPO, "steps": 1, "rewards": {"functions": functions}}).metrics()
    columns = {
        name.rpartition("_")[0]: metrics[name].tolist() for name in metrics.columns if name.startswith("rewards/")
    }
    assert {"rewards/lambda", "rewards/contains", "rewards/Wanted"} <= set(columns), metrics.columns
    assert columns["rewards/lambda"] == columns["rewards/contains"]
    assert len([name for name in metrics.columns if name.startswith("rewards/Wanted")]) == 2


def test_environments_are_classes_functions_and_made_by_gymnasium() -> None:
    class Corridor(ImportableCorridor):
        """A class that no import finds."""

    def make_corridor() -> gymnasium.Env:
        return ImportableCorridor()

    small = {**PPO, "steps": 1, "env": {"num_envs": 1, "max_episode_steps": 20}}
    makers = {"a": ImportableCorridor, "b": Corridor, "c": make_corridor, "e": lambda: ImportableCorridor()}
    for name, env in {**makers, "f": partial(Corridor)}.items():
        train({**small, "name": name, "env": {**small["env"], "id": env}})
    assert len({tuple(figures(Path(f"runs/{name}"))) for name in "abcef"}) == 1
    assert train({**PPO, "steps": 1, "name": "d", "env": gymnasium.make("CartPole-v1")}).step == 1
    assert document_of({**PPO, "env": "CartPole-v1"}, [], Path()).values["env"] == {"id": "CartPole-v1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env": ImportableCorridor()}, "env: one ImportableCorridor object cannot be the many environments"),
        (
            {"env": {"id": partial(ImportableCorridor, np.zeros(2))}},
            "env.id: the partial object uses a value, a ndarray",
        ),
        ({"env": {"id": len}}, "env.id: <built-in function len> is written in C; give a function of your own"),
        ({"learner": {"lrr": 1e-4}}, "unknown key learner.lrr in the config; did you mean learner.lr"),
        ({"learner": {"lr": "fast"}}, "learner.lr .*the config"),
        ({3: 4}, "the key 3 is not text"),
        ({"recipe": "pppo"}, "recipe = .pppo. in the config is not known; did you mean ppo"),
    ],
)
def test_faults_name_the_key(change: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train({**PPO, **change})
    assert not Path("runs/short").exists()


def test_all_faults_of_a_dictionary_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        train({**GRPO, "task": {"source": [{"prompt": object()}]}, "rewards": {"functions": [len, np.zeros(2).sum]}})
    told = "\n".join(caught.value.messages)
    assert "task.source: its rows must be dicts" in told
    assert "rewards.functions.0: <built-in function len> is written in C" in told
    assert "rewards.functions.1: <built-in method sum" in told


SCRIPT = """
import re
from hone.api import train

DIGITS = re.compile("[0-9]")

def digits(completion):
    return len(DIGITS.findall(completion)) / 3

class Unused:
    pass

result = train({config}, ["name=script"])
print(result.step, sorted(result.metrics().columns)[:1])
"""


def test_functions_of_a_script_are_taken_along_without_running_it_again(place: Path) -> None:
    config = repr({**GRPO, "rewards": {"functions": ["digits"]}}).replace("'digits'", "digits")
    (place / "script.py").write_text(SCRIPT.replace("{config}", config))
    answer = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, timeout=120, cwd=place
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("2 [")
    (code,) = Path("runs/.python").glob("digits_*.py")
    assert "train(" not in code.read_text()
    assert "re.compile" in code.read_text()
    assert read_result(Path("runs/script")).step == 2


@pytest.mark.slow
def test_a_file_that_trains_when_it_is_imported_is_told_of(place: Path) -> None:
    config = repr({**GRPO, "rewards": {"functions": ["script.py:digits"]}})
    (place / "script.py").write_text(SCRIPT.replace("{config}", config))
    answer = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, timeout=120, cwd=place
    )
    assert answer.returncode != 0
    assert 'call it under `if __name__ == "__main__":`' in answer.stderr


def test_the_faults_are_of_one_family() -> None:
    with pytest.raises(HoneError):
        train({"recipe": "ppo"})


def test_a_changed_function_is_a_change_that_a_resume_must_be_told_of() -> None:
    def score(completion: str) -> float:
        return 1.0

    first = score

    def score(completion: str) -> float:
        return 0.5

    train({**GRPO, "rewards": {"functions": [first]}})
    changed = {**GRPO, "rewards": {"functions": [score]}}
    with pytest.raises(ConfigError, match="allow_changed_config=True"):
        train(changed, ["steps=3"], resume=True)
    with pytest.raises(ConfigError, match="allow_changed_code=True"):
        train(changed, ["steps=3"], resume=True, allow_changed_config=True)
    accepted = train(changed, ["steps=3"], resume=True, allow_changed_config=True, allow_changed_code=True)
    assert accepted.step == 3
