"""Early experience in a maze of 40 places with 8 doors each: 80 of 320 questions are demonstrated, 240 are held out.

A policy that hardly knows more than how to name a door opens 9,600 of them. Hindsight makes a demonstration of each
move; the share of held-out questions whose answer is among the moves (coverage) is printed beside it: it is knowledge,
not generalisation. The world model learns where doors lead, and is asked about each of the 8 doors at decision time.
Implicit world modelling (the world model first, then imitation of the demonstrations) is compared with imitation alone
at equal updates. Held-out questions are answered greedily; chance is 0.125.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from demonstrations import Bar

from hone import api
from hone.core.generation import Request, SamplingParams
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.search_scorers import WorldModelCandidateScorer
from hone.text.games.doors import ALPHABET, END, LETTERS, DoorQuestion, coverage, split_questions, walk_rows
from hone.text.search.searching import Candidate
from hone.text.tasks.collection import read_collection
from hone.text.tasks.world import Prompt

TITLE = "Early experience, a maze of doors"
SEEDS = (200, 201, 202, 203, 204)
BARS = (
    Bar(figure="hindsight", at_least=0.95),
    Bar(figure="world model asked about each door", at_least=0.95),
    Bar(figure="imitation", at_most=0.2),
)
MODEL = {
    "hidden_size": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 192,
    "max_positions": 32, "alphabet": ALPHABET,
}  # fmt: skip
RUN = {"threads": 1, "rollouts_every": 0, "certify": False}
WORLD_STEPS, HINDSIGHT_STEPS, IMITATION_STEPS = 700, 400, 300


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed: its maze, its demonstrations, its walks."""
    with tempfile.TemporaryDirectory() as name:
        return _figures(Path(name), seed, quick=quick)


def _figures(place: Path, seed: int, *, quick: bool) -> dict[str, float]:
    shown, held = split_questions(seed, demonstrated=80, seed=seed)
    files = {
        "shown": _write(place / "shown.jsonl", [one.row() for one in shown]),
        "held": _write(place / "held.jsonl", [one.row() for one in held]),
        "walks": _write(place / "walks.jsonl", walk_rows(seed, 40 if quick else 400, seed=seed)),
    }
    trained = _Stages(place, files, seed, quick=quick)
    trained.sft("base", None, {"source": files["shown"]}, steps=20)
    trained.walks()
    moves = {"source": str(place / "walks")}
    hindsight = trained.sft(
        "hindsight", "base", moves, steps=HINDSIGHT_STEPS, changes={"relabel": "hone.text.games.doors:goal_of"}
    )
    trained.sft("world", "base", moves, steps=WORLD_STEPS, changes={"learn": {"policy": 0.0, "world": 1.0}})
    after_world = trained.sft("after_world", "world", {"source": files["shown"]}, steps=IMITATION_STEPS)
    alone = trained.sft("alone", "base", {"source": files["shown"]}, steps=WORLD_STEPS + IMITATION_STEPS)
    met = _met(place / "walks", held)
    return {
        "coverage of held-out questions by the walks": met,
        "hindsight": hindsight,
        "hindsight minus coverage": hindsight - met,
        "world model asked about each door": asked_about_each(place / "world", held),
        "imitation": alone,
        "implicit world modelling, then imitation": after_world,
        "implicit world modelling minus imitation, equal updates": after_world - alone,
    }


class _Stages:
    """Runs of one seed, each in a folder of its own."""

    def __init__(self, place: Path, files: dict[str, str], seed: int, *, quick: bool) -> None:
        self.place, self.files, self.seed, self.quick = place, files, seed, quick

    def sft(
        self, name: str, start: str | None, task: dict[str, Any], *, steps: int, changes: dict[str, Any] | None = None
    ) -> float:
        """Train by imitation; the share of held-out questions that are answered right."""
        model = {"new": MODEL} if start is None else {"path": str(self.place / start)}
        scores: list[float] = []
        config = {
            "recipe": "sft", "name": name, "seed": self.seed, "steps": min(steps, 10) if self.quick else steps,
            "batch": 64, "model": model, "task": task, "run": RUN,
            "learner": {"lr": 3e-3, "lr_decay": "cosine", "warmup_steps": 10},
            "evaluation": {
                "task": {"source": self.files["held"]}, "max_tokens": 2, "stop": [END],
                "rewards": {"functions": [{"use": "exact_match"}]},
                "user_code": {"workers": 1},
            },
            **(changes or {}),
        }  # fmt: skip
        api.train(config, runs=self.place, on_evaluation=lambda event: scores.append(event.score))
        return scores[-1]

    def walks(self) -> None:
        """Let the base open doors, 24 for each row."""
        rows = {"rows": self.files["walks"], "turns": 1}
        config = {
            "recipe": "collect", "name": "walks", "seed": self.seed, "steps": 1 if self.quick else 10, "run": RUN,
            "model": {"path": str(self.place / "base")},
            "task": {"source": "dialogue:hone.text.games.doors:DoorMaze", **rows},
            "rollout": {
                "prompts_per_step": 40, "samples_per_prompt": 4 if self.quick else 24, "max_tokens": 2, "stop": [END],
                "temperature": 2.0,
            },
        }  # fmt: skip
        api.train(config, runs=self.place)


def asked_about_each(folder: Path, questions: list[DoorQuestion]) -> float:
    """Share of the questions whose right door is the one after which the model finds the goal likeliest."""
    model = open_policy(ModelSource(path=str(folder)), seed=0, device="cpu", temperature=1.0)
    encode, sampling = model.tokenizer.encode, SamplingParams(max_tokens=2)
    prompts = {
        one.text: Prompt(id=one.text, content=one.text, tokens=encode(one.text), columns=one.row()) for one in questions
    }
    scorer = WorldModelCandidateScorer(model=model, prompts=prompts, wanted="wanted")
    doors = [_candidate(encode(letter + END)) for letter in LETTERS]
    asked = [
        (Request(id=name, prompt=prompt.tokens, samples=1, sampling=sampling), doors)
        for name, prompt in prompts.items()
    ]
    best = [LETTERS[int(np.argmax(found.values))] + END for found in scorer.score(asked)]
    return float(np.mean([one.door == door for one, door in zip(questions, best, strict=True)]))


def _candidate(tokens: np.ndarray) -> Candidate:
    nothing = np.zeros(len(tokens), np.float32)
    return Candidate(
        tokens=tokens, logp=nothing, version=nothing.astype(np.int32), step_ends=(len(tokens),), finish="stop"
    )


def _met(walks: Path, held: list[DoorQuestion]) -> float:
    """Share of the held-out questions whose answer is among the moves, whatever they were asked."""
    met: set[tuple[str, str]] = set()
    for example in read_collection(str(walks)).rows:
        for answer in example.answers:
            door, _, place = str(answer.content).strip().partition(END)
            if door in LETTERS and place.isdigit():
                met.add((f"{str(example.prompt)[:2]}>{place}:", door + END))
    return coverage(held, met)


def _write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
