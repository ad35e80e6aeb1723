"""A server of text on the held-out prompts of a policy: the same scores for the same answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from hone.core.errors import ConfigError
from hone.engine.clients.http import HttpClient, ServerAddress
from hone.engine.clients.openai import OpenAiClient
from hone.evaluate import checkpoint
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer, character_tokenizer
from hone.rewards.config import RewardFunction, RewardsConfig, UserCodeConfig
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.reward_members import reward_scorer
from hone.text.evaluate.text_eval import EvaluationConfig, decode_bytes, evaluate_text_server, prepare_evaluation

ANSWERS = {"1+1=": "2", "2+2=": "5", "3+3=": "", "4+4=": "8 ✓"}


class Teacher(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict[str, object]]] = []

    def log_message(self, format, *args):
        """Silent."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Teacher.bodies.append(body)
        text = ANSWERS[body["prompt"] if "prompt" in body else body["messages"][-1]["content"]]
        choice = {"text": text, "message": {"content": text}, "finish_reason": "stop"}
        content = json.dumps({"choices": [choice], "usage": {"completion_tokens": 7}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def client():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Teacher)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield OpenAiClient(
        HttpClient(ServerAddress(url=f"http://127.0.0.1:{server.server_address[1]}")), model="teacher", slots=2
    )
    server.shutdown()
    server.server_close()


def no_model(path: str, weights: str) -> ScalarHeadModel:
    raise AssertionError(f"{path} {weights}")


@pytest.mark.parametrize("chat", [False, True])
def test_answers_are_scored_and_none_is_lost(client, tmp_path: Path, chat: bool) -> None:
    """A chat is sent as messages, with the task's system message and the template's variables."""
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(ANSWERS, "2468", strict=True)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "score.py").write_text("def right(completion, answer):\n    return float(completion == answer)\n")
    config = EvaluationConfig(
        task=DialogueTaskConfig(
            source=str(tmp_path / "held.jsonl"), system="Add." * chat, chat_template_kwargs={"mood": "glad"}
        ),
        rewards=RewardsConfig(functions=[RewardFunction(use=f"{tmp_path / 'score.py'}:right")]),
        max_tokens=4,
    )
    exam = prepare_evaluation(
        config,
        byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
        if chat
        else character_tokenizer(["0123456789+="]),
        context=64,
        scorer=reward_scorer(config.rewards, limits=UserCodeConfig(workers=1), load=no_model),
    )
    Teacher.bodies.clear()
    try:
        judged = evaluate_text_server(exam, client)
    finally:
        exam.close()
    assert judged.answers == ["2", "5", "", "8 ✓"]
    assert judged.scores.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert judged.lengths.tolist() == [7] * 4
    assert {str(body.get("messages", [{}])[0]) for body in Teacher.bodies} == {
        str({"role": "system", "content": "Add."} if chat else {})
    }
    assert all(body.get("chat_template_kwargs") == ({"mood": "glad"} if chat else None) for body in Teacher.bodies)


def test_rows_with_tools_are_not_sent(client, tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2", "tools": [{"name": "add"}]}))
    rewards = RewardsConfig(functions=[RewardFunction(use="exact_match")])
    task = DialogueTaskConfig(source=str(tmp_path / "held.jsonl"))
    exam = prepare_evaluation(
        EvaluationConfig(task=task, rewards=rewards, max_tokens=4),
        byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS),
        context=900,
        scorer=reward_scorer(rewards, limits=UserCodeConfig(workers=1), load=no_model),
    )
    with pytest.raises(ConfigError, match="1 rows of the evaluation have tools"):
        evaluate_text_server(exam, client)
    exam.close()


def test_text_survives_the_bytes() -> None:
    assert decode_bytes(np.array([*"Grüße ✓".encode(), 256], np.int32)) == "Grüße ✓"
    assert decode_bytes(np.array([256], np.int32)) == ""


def test_a_run_asks_a_server_its_own_questions(client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(ANSWERS, "2468", strict=True)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "score.py").write_text("def right(completion, answer):\n    return float(completion == answer)\n")
    config = EvaluationConfig(
        task=DialogueTaskConfig(source=str(tmp_path / "held.jsonl")),
        rewards=RewardsConfig(functions=[RewardFunction(use=f"{tmp_path / 'score.py'}:right")]),
        max_tokens=4,
    )
    monkeypatch.setattr(checkpoint, "evaluation_config", lambda run, task, *, problems, seed: config)
    monkeypatch.setattr(checkpoint, "user_code_limits", lambda run: UserCodeConfig(workers=1))
    monkeypatch.setattr(checkpoint, "open_tokenizer", lambda source: (character_tokenizer(["0123456789+="]), 64))
    found = checkpoint.evaluate_server(tmp_path, run=tmp_path, url=client.link.url, model="teacher", problems=4, seed=0)
    assert found.scores["eval/score"] == 0.25 and found.scores["eval/tokens_mean"] == 7.0
    assert "evaluated teacher at http://127.0.0.1" in found.notes[0]
    two = checkpoint.evaluate_server(tmp_path, run=tmp_path, url=client.link.url, model="teacher", problems=2, seed=0)
    assert two.scores["eval/answered"] == 2.0 and two.scores["eval/score"] == 0.5
    model = RewardsConfig.model_validate({"functions": [{"kind": "model", "path": "anywhere"}]})
    config = config.model_copy(update={"rewards": model})
    with pytest.raises(ConfigError, match="scores token ids, and --server gets text"):
        checkpoint.evaluate_server(tmp_path, run=tmp_path, url=client.link.url, model="teacher", problems=2, seed=0)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(ConfigError, match="--server is for language models"):
        checkpoint.evaluate_server(tmp_path, run=None, url=client.link.url, model="", problems=4, seed=0)
