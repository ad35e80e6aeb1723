"""A judge as the reward: a trained verifier behind an OpenAI-compatible server, and in the trainer's process.

Chains of sums, a policy that imitated a hurried teacher. A verifier is trained on its labelled answers (`collect`, then
`reward_outcome`) and is the only reward of GRPO: once in process, on token ids, and once as the model of a judge, asked
over HTTP about fenced text and answering in JSON. Both are the same numbers, so both should be the same run. (`min_p`
keeps special tokens out of answers: a judge is sent text, which does not show them.)

The third run's judge breaks on purpose: it then prefers what it should refuse. Its canaries, whole chains against
chains cut off after the first step, stop the run.
"""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import numpy as np

from demonstrations import Bar
from hone.api import train
from hone.core.errors import UserCodeError
from hone.estimators.calibration import probabilities
from hone.estimators.means import paired_difference
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, hurried_solution, make_problems
from hone.rewards.judges.questions import unescape
from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.evaluations import latest_answers
from hone.text.evaluate.open_policy import load_scorer

TITLE = "judge as reward"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="difference of judge and verifier within its interval", at_least=1),
    Bar(figure="broken judge stopped", at_least=1),
)
SIZE = {"hidden_size": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 192}
MAX_TOKENS = 40
RIGHT = {"use": "hone.lab.tasks.chain_of_sums:right_chain"}


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Accuracies of whole chains on held-out problems, and what the canaries did."""
    folder = Path(mkdtemp(prefix="judge"))
    try:
        return Demonstration(folder, seed, quick=quick).figures()
    finally:
        shutil.rmtree(folder)


class Demonstration:
    """Runs of one seed in a folder."""

    def __init__(self, folder: Path, seed: int, *, quick: bool) -> None:
        self.folder, self.seed = folder, seed
        self.steps = 6 if quick else 20
        self.base_steps = 60 if quick else 700
        self.scorer_steps = 20 if quick else 350
        self.held_out = make_problems(32 if quick else 300, seed=seed + 10_000)
        self.problems = make_problems(200 if quick else 8000, seed=seed, exclude=self.held_out)

    def figures(self) -> dict[str, float]:
        base, verifier = self._base_and_verifier()
        inside = self._grpo(
            "inside", base, {"kind": "model", "path": str(verifier), "output": "probability", "micro_batch_tokens": 1}
        )
        with verifier_server(verifier) as server:
            served = self._grpo("served", base, self._judge(server.url))
            broken = self._broken(base, server)
        difference = paired_difference(scores(inside), scores(served))
        return {
            "accuracy of the base": float(scores(self.folder / "base").mean()),
            "accuracy with the verifier in process": float(scores(inside).mean()),
            "accuracy with the verifier as a judge": float(scores(served).mean()),
            "difference of judge and verifier within its interval": float(difference.low <= 0 <= difference.high),
            "same weights to the bit": float(weights(inside) == weights(served)),
            "agreement with canaries": last_metric(served, "judge/verifier/agreement"),
            **broken,
        }

    def _base_and_verifier(self) -> tuple[Path, Path]:
        rows = [{"prompt": one.prompt, "completion": hurried_solution(one)} for one in self.problems]
        base = self._train(
            "base",
            {"recipe": "sft", "steps": self.base_steps, "batch": 64, "learner": {"lr": 3e-3, "lr_decay": "linear"}},
            rows,
            model={"new": {**SIZE, "max_positions": 64, "alphabet": ALPHABET}},
            evaluate=True,
        )
        answers = self._train(
            "answers",
            {
                "recipe": "collect",
                "steps": 2 if len(self.problems) < 1000 else 20,
                "rewards": {"functions": [RIGHT]},
                "user_code": {"workers": 1},
                "rollout": {"prompts_per_step": 100, "samples_per_prompt": 4, "max_tokens": MAX_TOKENS},
            },
            [{"prompt": one.prompt} for one in self.problems],
            model={"path": str(base)},
        )
        verifier = self._train(
            "verifier",
            {
                "recipe": "reward_outcome",
                "steps": self.scorer_steps,
                "batch": 64,
                "learner": {"lr": 1e-3, "lr_decay": "linear"},
            },
            str(answers),
            model={"path": str(base)},
        )
        return base, verifier

    def _grpo(self, name: str, base: Path, reward: dict[str, Any]) -> Path:
        settings = {
            "recipe": "grpo",
            "steps": self.steps,
            "rewards": {"functions": [reward]},
            "user_code": {"workers": 1},
            "rollout": {"prompts_per_step": 16, "samples_per_prompt": 8, "max_tokens": MAX_TOKENS, "min_p": 1e-3},
            "learner": {"lr": 1e-4},
            "algorithm": {"kl": 0.1},
        }
        rows = [{"prompt": one.prompt} for one in self.problems]
        return self._train(name, settings, rows, model={"path": str(base)}, evaluate=True)

    def _broken(self, base: Path, server: "VerifierServer") -> dict[str, float]:
        """The judge turns round after a third of the run's answers."""
        before = server.replies
        server.break_after(before + self.steps // 3 * 64)
        try:
            self._grpo("broken", base, self._judge(server.url, cache="broken"))
            stopped = 0.0
        except UserCodeError as error:
            stopped = float("below canaries.floor" in str(error))
        wrong = server.replies - before - self.steps // 3 * 64
        return {
            "broken judge stopped": stopped,
            "steps of the broken judge": float(len(metrics(self.folder / "broken"))),
            "verdicts of the broken judge before the stop": float(wrong),
        }

    def _judge(self, url: str, *, cache: str = "replies") -> dict[str, Any]:
        path = self.folder / "canaries.jsonl"
        path.write_text("".join(json.dumps(canary(one)) + "\n" for one in make_problems(100, seed=self.seed + 20_000)))
        criterion = {"name": "right", "text": "Every step is there and right.", "lowest": 0.0, "highest": 1.0}
        return {
            "kind": "judge",
            "name": "verifier",
            "by": {"kind": "server", "url": url, "model": "verifier", "max_concurrent": 4},
            "ask": {"kind": "rubric", "criteria": [criterion]},
            "cache": str(self.folder / cache),
            "canaries": {"path": str(path), "rate": 0.05, "window": 20, "repeats": 1},
        }

    def _train(
        self, name: str, settings: dict[str, Any], source: object, *, model: dict[str, Any], evaluate: bool = False
    ) -> Path:
        evaluation = {
            "task": {"source": [{"prompt": one.prompt} for one in self.held_out]},
            "rewards": {"functions": [RIGHT]},
            "user_code": {"workers": 1},
            "max_tokens": MAX_TOKENS,
            "temperature": 1.0,
        }
        config = {
            **settings,
            "name": name,
            "seed": self.seed,
            "model": {**model, "compute": "float32"},
            "task": {"source": source},
            "run": {"threads": 1, "certify": False, "rollouts_every": 0},
            **({"evaluation": evaluation} if evaluate else {}),
        }
        return train(config, runs=self.folder).folder


def canary(problem: SumProblem) -> dict[str, str]:
    """A whole chain against the first step of it."""
    return {"prompt": problem.prompt, "good": problem.solution, "bad": problem.steps[0] + ";"}


def metrics(run: Path) -> list[dict[str, float]]:
    """Lines of a run's metrics."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_metric(run: Path, name: str) -> float:
    """Last value of a metric."""
    return [line[name] for line in metrics(run) if name in line][-1]


def scores(run: Path) -> np.ndarray:
    """Scores `[n]` of the last evaluation."""
    return np.array([row.score for row in latest_answers(run)], np.float64)


def weights(run: Path) -> bytes:
    """The last weights, as they are on disk."""
    folder = CheckpointFolder(folder=run / "checkpoints").newest_policy().policy_folder
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.safetensors")))


class VerifierServer:
    """The verifier behind OpenAI's protocol: its probability for the fenced answer, as JSON."""

    def __init__(self, folder: Path) -> None:
        self.scorer, self.lock, self.url = load_scorer(folder), threading.Lock(), ""
        self.replies, self._last_right = 0, 1 << 40

    def break_after(self, replies: int) -> None:
        """Prefer the wrong answers after this many replies."""
        self._last_right = replies

    def reply(self, question: str) -> str:
        """The verdict, on the tokens that were drawn: one for each character, and the end unless it was cut off."""
        parts = dict(re.findall(r"<<<(prompt|answer) \w+\n(.*?)\n\1 \w+>>>", question, re.DOTALL))
        prompt, answer = (unescape(parts[name]) for name in ("prompt", "answer"))
        tokenizer = self.scorer.tokenizer
        tokens = np.concatenate([tokenizer.encode(prompt), tokenizer.encode(answer)])
        if len(answer) < MAX_TOKENS:
            tokens = np.append(tokens, tokenizer.eos_id)
        with self.lock:
            last = [np.array([len(tokens) - 1])]
            logits = self.scorer.model.score_tokens([tokens.astype(np.int32)], last, micro_batch_tokens=1)
            chance = float(probabilities(logits)[0])
            self.replies += 1
            chance = chance if self.replies <= self._last_right else 1.0 - chance
        return json.dumps({"reason": "asked the verifier", "right": chance})


class VerifierHandler(BaseHTTPRequestHandler):
    """Requests to the server `verifier`, an attribute of a subclass."""

    verifier: ClassVar[VerifierServer]

    def do_GET(self) -> None:
        """The served models."""
        self.send({"data": [{"id": "verifier"}]})

    def do_POST(self) -> None:
        """A verdict."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": self.verifier.reply(body["messages"][-1]["content"])}
        self.send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def send(self, reply: dict[str, Any]) -> None:
        """A reply of OpenAI's protocol."""
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def verifier_server(folder: Path) -> Iterator[VerifierServer]:
    """The verifier of a run, served on a free port."""
    verifier = VerifierServer(folder)
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (VerifierHandler,), {"verifier": verifier}))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    verifier.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield verifier
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
