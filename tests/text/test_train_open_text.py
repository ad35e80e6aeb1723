"""A run opens data, tokenizer and reward workers once, in its check; a check that fails leaves nothing open."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hone import api
from hone.core.errors import HoneError
from hone.rewards.workers import RewardWorkerPool
from hone.text.evaluate import open_policy
from hone.text.tasks.task import TaskConfig

MODEL = """{ hidden_size = 16, layers = 1, heads = 2, kv_heads = 1, head_dim = 8, intermediate_size = 24,
alphabet = 'abcde' }""".replace("\n", " ")
REWARDS = "rewards = { functions = [{ use = 'exact_match' }] }"
EVALUATION = f"evaluation = {{ task = {{ source = 'held_out.jsonl' }}, max_tokens = 2, {REWARDS} }}"
RUNS = {
    "sft": f"""
recipe = "sft"
steps = 1
batch = 4
model = {{ new = {MODEL} }}
task = {{ source = "letters.jsonl" }}
learner = {{ lr = 0.01 }}
user_code = {{ workers = 1 }}
{EVALUATION}
""",
    "grpo": f"""
recipe = "grpo"
steps = 1
model = {{ new = {MODEL} }}
task = {{ source = "letters.jsonl" }}
rollout = {{ prompts_per_step = 4, samples_per_prompt = 2, max_tokens = 2 }}
learner = {{ lr = 0.01 }}
algorithm = {{ kl = 0.1 }}
user_code = {{ workers = 1 }}
{REWARDS}
{EVALUATION}
""",
}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Two files of letters in the working folder, and a count of everything that is opened and closed."""
    count = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            count[name] += 1
            return function(*args, **keywords)

        return call

    for name, pairs in (("letters", "ab bc cd de"), ("held_out", "ea")):
        rows = [{"prompt": a, "answer": b, "completion": b} for a, b in pairs.split()]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TaskConfig, "examples", counted("datasets", TaskConfig.examples))
    for tokenizer in ("_new_tokenizer", "load_tokenizer"):
        monkeypatch.setattr(open_policy, tokenizer, counted("tokenizers", vars(open_policy)[tokenizer]))
    for event, method in (("started", "_start_worker"), ("closed", "close")):
        monkeypatch.setattr(RewardWorkerPool, method, counted(event, vars(RewardWorkerPool)[method]))
    return count


@pytest.mark.parametrize("name", RUNS)
def test_a_run_opens_everything_once(name: str, opened: Counter[str]) -> None:
    """Two datasets, one tokenizer (the reference policy of the KL penalty shares it), one worker for each scorer."""
    Path("run.toml").write_text(RUNS[name], encoding="utf-8")
    api.train("run.toml")
    assert (opened["datasets"], opened["tokenizers"], opened["started"]) == (
        2,
        1,
        len(RUNS[name].split("rewards = ")) - 1,
    )


def test_a_pipeline_opens_everything_once_for_each_stage(opened: Counter[str]) -> None:
    second = RUNS["grpo"].replace(f"model = {{ new = {MODEL} }}", 'model = { path = "stage:sft" }')
    stages = "".join(f"[[stage]]{text}" for text in (RUNS["sft"], second))
    Path("both.toml").write_text(stages, encoding="utf-8")
    api.train("both.toml")
    assert (opened["datasets"], opened["tokenizers"], opened["started"]) == (4, 2, 3)


def test_a_check_that_fails_reports_every_fault_and_closes_what_it_opened(opened: Counter[str]) -> None:
    text = RUNS["grpo"].replace("letters.jsonl", "nowhere.jsonl").replace("'exact_match'", "'no_such_file.py:score'")
    Path("run.toml").write_text(text, encoding="utf-8")
    with pytest.raises(HoneError) as fault:
        api.train("run.toml")
    message = str(fault.value)
    assert "nowhere.jsonl" in message
    assert "no_such_file.py" in message
    assert opened["closed"] >= 1
    assert not Path("runs").exists()
