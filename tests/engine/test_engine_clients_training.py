"""A training run whose answers a server writes: the same loop, the same figures, and the weights of every step."""

import json
import threading
from pathlib import Path

import pytest
from engine_servers import FakeServer

from hone.cli.main import main
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy

NEW = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24}
RUN = """
recipe = "grpo"
name = "served"
steps = 4
[model]
compute = "float32"
path = "start"
[task]
source = "sums.jsonl"
[user_code]
workers = 1

[rewards]
[[rewards.functions]]
use = "rewards.py:short"
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 5
max_concurrent = 8
temperature = 0.9
[rollout.runner]
kind = "vllm"
url = "URL"
reconnect_timeout_s = 20.0
[learner]
lr = 1e-2
[run]
threads = 1
"""
REWARDS = """
def short(completions):
    return [-float(len(text)) for text in completions]
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ModelSource(new=NewModelConfig(**NEW, max_positions=64, alphabet="0123456789+="), compute="float32")
    policy = open_policy(source, seed=0, device="cpu", temperature=1.0)
    policy.save(tmp_path / "start")
    rows = [{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    server = FakeServer(tmp_path / "start", "vllm", decode=policy.tokenizer.decode)
    (tmp_path / "run.toml").write_text(RUN.replace("URL", server.url))
    yield server
    server.end()


def metrics(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path("runs") / folder / "metrics.jsonl").read_text().splitlines()]


def test_each_step_is_answered_by_its_own_weights(server):
    assert main(["train", "run.toml"]) == 0
    told = [line for line in metrics("served") if "mismatch/mean" in line]
    assert len(told) == 4
    assert max(line["mismatch/mean"] for line in told) < 1e-5
    assert max(line["rollout/canary_gap"] for line in told) < 1e-5
    assert server.loads == 5, "once before the first step, and after each"
    assert server.label.endswith(".4")
    assert {body["sampling_params"]["temperature"] for body in server.asked if body["token_ids"] != [0, 0]} >= {0.9}


def test_a_run_ahead_of_its_learner_says_how_old_answers_are(server):
    assert main(["train", "run.toml", "name=ahead", "rollout.max_staleness=1"]) == 0
    told = [line for line in metrics("ahead") if "async/staleness" in line]
    assert [line["async/staleness"] for line in told] == [0, 1, 1, 1]


def test_several_servers_stand_in_the_plan_each_of_them_once(server, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", "run.toml", 'rollout.runner.url=["http://a:1", "http://b:1/"]']) == 0
    assert "vllm at http://a:1, http://b:1" in capsys.readouterr().out
    assert main(["plan", "run.toml", 'rollout.runner.url=["http://a:1", "http://a:1/"]']) == 2
    assert "more than once; each server is one address" in capsys.readouterr().err


@pytest.mark.slow  # a run
def test_two_servers_share_a_run_out_and_say_how_old_their_answers_are(server, capsys):
    other = FakeServer(server.first, "vllm", decode=server.decode)
    both = f'rollout.runner.url=["{server.url}", "{other.url}"]'
    assert main(["train", "run.toml", both, "name=pair", "steps=3", "rollout.max_staleness=1"]) == 0
    other.end()
    told = [line for line in metrics("pair") if "async/staleness" in line]
    assert [line["async/staleness"] for line in told] == [0, 1, 1]
    assert told[0]["mismatch/mean"] < 1e-5  # later answers are of older weights than learn from them
    printed = capsys.readouterr().out
    assert f"on {server.url} gave" in printed
    assert "cannot be repeated" not in printed


def test_a_server_that_restarts_in_a_run_changes_nothing(server):
    assert main(["train", "run.toml", "name=calm"]) == 0
    server.slow_s = 0.002
    before = server.loads

    def restart():
        while server.loads < before + 3:
            threading.Event().wait(0.005)
        server.end()
        threading.Event().wait(0.2)
        server.begin()

    thread = threading.Thread(target=restart)
    thread.start()
    assert main(["train", "run.toml", "name=disturbed"]) == 0
    thread.join()
    for one, other in zip(metrics("calm"), metrics("disturbed"), strict=True):
        assert one["reward/mean"] == other["reward/mean"]


def test_what_an_older_server_lacks_is_said_in_the_run(server, capsys):
    server.missing |= {"/update_weight_version", "weight_versions"}
    assert main(["train", "run.toml", "steps=1"]) == 0
    assert "lacks 'labels'" in capsys.readouterr().err + (Path("runs") / "served" / "log.txt").read_text()


def test_a_server_without_token_ids_is_refused(server, capsys):
    server.missing |= {"enable-scale-out"}
    assert main(["train", "run.toml"]) == 2
    said = capsys.readouterr().err
    assert "no policy can be trained on its answers" in said
    assert "--enable-scale-out" in said


def test_settings_that_a_server_has_not_are_refused(server, capsys):
    assert main(["plan", "run.toml", "rollout.deterministic=batch"]) == 2
    assert "a promise of the embedded engine" in capsys.readouterr().err
    assert main(["plan", "run.toml", 'rollout.runner.kind="openai"']) == 2
    assert "vllm" in capsys.readouterr().err
