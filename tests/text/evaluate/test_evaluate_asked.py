"""`hone eval` and `hone sample` on problems that the run does not name, and for runs without `[evaluation]`."""

import json
from pathlib import Path

import pytest

from hone.api import evaluate, sample, train
from hone.cli.main import main
from hone.core.generation import Request, generate
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.text.evaluate.open_policy import policy_folder
from hone.text.serving.completions.asked import CallIdentity, asked_chat
from hone.text.serving.completions.fields import ChatFields
from hone.text.serving.completions.run_server import ServedSource, open_served

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
CONFIG = {
    "recipe": "grpo",
    "name": "tiny",
    "steps": 1,
    "model": {
        "new": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64}
    },
    "task": {"source": ROWS, "template": "{prompt}"},
    "rewards": {"functions": ["exact_match"]},
    "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2, "max_tokens": 3},
    "run": {"certify": False},
    "learner": {"lr": 1e-3},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(CONFIG)
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    (folder / "own.py").write_text("def half(completion):\n    return 0.5\n")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_a_run_without_evaluation_is_evaluated_on_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny", "--task", "held_out.jsonl"]) == 0
    told = capsys.readouterr().out
    assert "eval/answered" in told
    assert " 3" in next(line for line in told.splitlines() if "eval/answered" in line)


def test_rewards_replace_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny", "--task", "held_out.jsonl", "--rewards", "own.py:half"]) == 0
    assert "eval/score        0.500" in capsys.readouterr().out
    assert (
        main(["eval", "tiny", "--task", "held_out.jsonl", "--rewards", "own.py:half", "--rewards", "own.py:half"]) == 0
    )
    assert "eval/score        1.000" in capsys.readouterr().out


def test_a_task_by_name_brings_its_own_scorer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "tiny", "--task", "chain_sum", "--count", "2", "--max-tokens", "2"]) == 0
    told = capsys.readouterr().out
    assert "+" in told or "-" in told
    assert "0" in told


def test_samples_of_a_file_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "tiny", "--task", "held_out.jsonl", "--count", "2"]) == 0
    assert "1+1=" in capsys.readouterr().out


def test_a_policy_outside_a_run_needs_a_task_and_rewards(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "exported"
    (place / "runs/tiny/checkpoints/step_00000001/policy").rename(policy)
    try:
        assert main(["eval", str(policy)]) == 2
        assert "name problems with --task FILE" in capsys.readouterr().err
        assert main(["eval", str(policy), "--task", "held_out.jsonl"]) == 2
        assert "name the rewards: --rewards exact_match" in capsys.readouterr().err
        assert main(["eval", str(policy), "--task", "held_out.jsonl", "--rewards", "exact_match"]) == 0
    finally:
        policy.rename(place / "runs/tiny/checkpoints/step_00000001/policy")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "runs/tiny was trained without [evaluation]: name problems with --task FILE"),
        (["--task", "chain_summ"], 2, "chain_sum"),
        (["--task", "absent.jsonl"], 3, "absent.jsonl"),
        (["--task", "held_out.jsonl", "--rewards", "exact_mach"], 2, "did you mean exact_match"),
        (["--task", "held_out.jsonl", "--max-tokens", "none"], 2, "--max-tokens must be a whole number"),
    ],
)
def test_faults_name_the_remedy(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny", *arguments]) == code
    assert said in capsys.readouterr().err


def test_the_same_from_python() -> None:
    def quarter(completion: str) -> float:
        return 0.25

    assert evaluate("tiny", task="held_out.jsonl", rewards=["own.py:half"])["eval/score"] == 0.5
    assert evaluate("tiny", task=ROWS[:2], rewards=[quarter])["eval/answered"] == 2
    answers = sample("tiny", task="held_out.jsonl", rewards=["own.py:half"], count=2)
    assert [one.score for one in answers] == [0.5, 0.5]


def test_a_prompt_goes_through_the_chat_template_where_the_model_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    shape = ModelConfig(vocab_size=tokenizer.size, hidden_size=16, intermediate_size=24, layers=1, heads=2)
    save_model(new_model(shape, seed=3), tmp_path / "chat", tokenizer_from=None)
    tokenizer.save(tmp_path / "chat")
    asked: list[list[int]] = []

    def seen(engine: object, requests: list[Request]) -> object:
        asked.extend(request.prompt.tolist() for request in requests)
        return generate(engine, requests)  # type: ignore[arg-type]

    monkeypatch.setattr("hone.evaluate.checkpoint.generate", seen)
    for raw in ([], ["--raw"]):
        arguments = ["sample", str(tmp_path / "chat"), "--prompt", "2+2?", "--count", "1", "--max-tokens", "2", *raw]
        assert main(arguments) == 0
    assert asked[0] == tokenizer.apply_chat([{"role": "user", "content": "2+2?"}]).tolist()
    assert asked[1] == tokenizer.encode("2+2?").tolist()
    assert main(["sample", "tiny", "--prompt", "2+2?", "--count", "1"]) == 0
    assert len(asked[2]) == 4, "without a template as ever"
    assert sample(tmp_path / "chat", prompt="2+2?", count=1, raw=True)
    assert asked[3] == asked[1]


@pytest.mark.filterwarnings("ignore:.*the chat template describes no tools:UserWarning")
def test_a_run_that_learnt_rows_is_sampled_and_served_as_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's system message, variables and form of calls hold; a table that only answers have is passed over."""
    template = "{{ mood }}" + DEFAULT_CHAT_TEMPLATE
    new_policy = Path("talks")
    tokenizer = byte_tokenizer(chat_template=template, chat_tokens=ROLE_TOKENS)
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, heads=2, kv_heads=1,
        head_dim=16, max_positions=900,
    )  # fmt: skip
    save_model(new_model(config, seed=3), new_policy, tokenizer_from=None)
    tokenizer.save(new_policy)
    tools = {"use": ["hone:calculator"], "format": "bracket", "describe": True}
    task = {"source": ROWS, "system": "Add.", "chat_template_kwargs": {"mood": "glad"}, "tools": tools}
    rows = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
    train(
        {
            "recipe": "sft", "name": "talk", "steps": 1, "batch": 2, "model": {"path": str(new_policy)},
            "task": {**task, "source": rows}, "learner": {"lr": 1e-3}, "run": {"certify": False},
        }
    )  # fmt: skip
    run = Path("runs/talk")
    prompts: list[list[int]] = []

    def seen(engine: object, requests: list[Request]) -> object:
        prompts.extend(request.prompt.tolist() for request in requests)
        return generate(engine, requests)  # type: ignore[arg-type]

    monkeypatch.setattr("hone.evaluate.checkpoint.generate", seen)
    assert sample("talk", prompt="1+1=", count=1)
    sampled = tokenizer.decode(prompts[0], special=True)
    assert sampled.startswith("glad<|system|>Add.\n\nYou have tools:")
    assert sampled.endswith("without a call.<eos><|user|>1+1=<eos><|assistant|>")
    source = ServedSource(policy=policy_folder(run), run=run, name="talk", device="cpu", slots=2, context=0, seed=1)
    served = open_served(source).served
    fields = {"model": "talk", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 2}
    asked = asked_chat(ChatFields.model_validate(fields), served, CallIdentity(id="x", client_id=""))
    text = served.tokenizer.decode(asked.prompts[0].tokens, special=True)
    assert text == "glad<|system|>Add.<eos><|user|>1+1=<eos><|assistant|>"
    assert served.tool_format.name == "bracket" and served.describes_tools
