"""Tokens that are trained on against tokens that were drawn, over three chat templates.

Turns of 32 byte pairs are drawn from a model of token pairs at temperature 1, without a network. A ChatML template only
appends; another trims answers, and a third strips thoughts from earlier turns: these go on in further rows. Beside it,
the share of the same dialogues that would change if turns were decoded and encoded again.
"""

import json
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tokenizers as hf
from demonstrations import Bar
from dialogue_runs import repeated
from numpy.typing import NDArray
from text_runs import write_rows

from hone.core.episodes import Episodes
from hone.core.generation import Completion, Request
from hone.core.random import key
from hone.lab.experiments.retokenised_turns import PairModel, pair_model
from hone.models.language.tokenizers import Tokenizer, load_tokenizer
from hone.rewards.config import UserCodeConfig
from hone.text.evaluate.reward_members import TokenScorer, reward_scorer
from hone.text.evaluate.text_eval import EvaluationConfig, TextEvaluation, prepare_evaluation
from hone.text.games.guess import secret_rows
from hone.text.tasks.conversation import Conversation
from hone.text.tasks.world import TextWorld

TITLE = "Tokens of dialogues, 4 turns of 32 byte pairs, three templates"
SEEDS = (100, 101, 102)
BARS = (Bar(figure="dialogues whose trained ids differ from the drawn ones", at_most=0),)
HEAD = "{%- for m in messages -%}{{- '<|im_start|>' ~ m['role'] ~ '\n' -}}"
TAIL = (
    "{{- '<|im_end|>\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
TEMPLATES = {
    "appends": HEAD + "{{- m['content'] -}}" + TAIL,
    "trims": HEAD + "{{- m['content'] | trim -}}" + TAIL,
    "strips thoughts": HEAD
    + "{%- if m['role'] == 'assistant' and not loop.last -%}{{- m['content'].split('</think>')[-1] -}}"
    + "{%- else -%}{{- m['content'] -}}{%- endif -%}"
    + TAIL,
}
TURN, TURNS, NUMBERS = 32, 4, 15
SPECIAL = ("<|im_start|>", "<|im_end|>")


@dataclass(eq=False)
class DrawingSession:
    """Implements `GenerationSession` by turns of a table that were drawn before; remembers what it handed out."""

    turns: NDArray[np.int64]
    """`[n, TURN]`"""
    opening: list[int]
    """Tokens before each turn: a thought."""
    eos: int
    drawn: dict[tuple[str, int, int], list[int]] = field(default_factory=dict[tuple[str, int, int], "list[int]"])
    waiting: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        del round
        self.waiting += [(one, one.first_sample + place) for one in requests for place in range(one.samples)]

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        del request_ids
        if not self.waiting or (wake is not None and wake()):
            return None
        request, sample = self.waiting.pop()
        name = (request.id, sample, request.turn)
        row = key(0, "turn", *name) % len(self.turns)
        said = [*self.opening, *self.turns[row].tolist(), self.eos]
        self.drawn[name] = said
        zeros = np.zeros(len(said), np.float32)
        return Completion(
            request_id=request.id, sample_index=sample, tokens=np.array(said, np.int32), logp=zeros, sampled_logp=zeros,
            version=np.zeros(len(said), np.int32), finish_reason="eos", turn=request.turn,
        )  # fmt: skip

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        if request_ids is None:
            self.waiting.clear()
        self.waiting = [one for one in self.waiting if one[0].id not in (request_ids or ())]

    def reset_stats(self) -> None:
        """It keeps none."""


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Dialogues of one seed, in equal parts for each template."""
    model, samples = pair_model(), 4 if quick else 75
    found: dict[str, float] = {"dialogues": 0, "dialogues whose trained ids differ from the drawn ones": 0}
    again = 0.0
    for name, template in TEMPLATES.items():
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = chat_tokenizer(Path(folder), model, template)
            opening = tokenizer.encode("<think>so</think>").tolist() if name == "strips thoughts" else []
            turns = model.draw(20_000, 1.0, seed, tokens=TURN)
            session = DrawingSession(turns, opening, tokenizer.eos_id)
            exam = evaluation(Path(folder), tokenizer, history="append" if name == "appends" else "template")
            world = _world(exam, tokenizer, samples, seed)
            try:
                episodes = world.rollout(session)
            finally:
                exam.close()
        talks = world.conversations
        found["dialogues"] += len(talks)
        found["dialogues whose trained ids differ from the drawn ones"] += sum(
            trained != drawn for trained, drawn in _both(episodes, talks, session)
        )
        found[f"dialogues of several rows, {name}"] = float(np.mean([len(one.rows) > 1 for one in talks]))
        again += sum(_changes(one, session, tokenizer) for one in talks)
    found["share that would differ if encoded again"] = again / found["dialogues"]
    return found


def chat_tokenizer(folder: Path, model: PairModel, template: str) -> Tokenizer:
    """The byte pairs of a model with a chat template."""
    backend = hf.Tokenizer.from_str(model.tokenizer.to_str())
    backend.add_special_tokens([hf.AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": SPECIAL[1], "pad_token": SPECIAL[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "clean_up_tokenization_spaces": False}))
    (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(folder)


def evaluation(folder: Path, tokenizer: Tokenizer, *, history: str) -> TextEvaluation:
    """Dialogues about a number, which no turn ever names: the world answers `?` to all of them."""
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in secret_rows(NUMBERS, TURNS)]
    task = {
        "source": "dialogue:hone.text.games.guess:GuessingGame", "turns": TURNS,
        "rows": write_rows(folder / "rows.jsonl", repeated(rows, 1)),
    }  # fmt: skip
    config = EvaluationConfig.model_validate({"task": task, "rewards": {}, "max_tokens": 64, "history": history})
    return prepare_evaluation(
        config,
        tokenizer,
        context=2048,
        scorer=reward_scorer(config.rewards, limits=UserCodeConfig(workers=1), load=_no_model),
    )


def _no_model(path: str, _weights: str) -> TokenScorer:
    raise ValueError(f"{path}: these dialogues have no reward model")


def _world(exam: TextEvaluation, tokenizer: Tokenizer, samples: int, seed: int) -> TextWorld:
    assert exam.dialogues is not None
    return TextWorld(
        prompts=exam.prompts,
        scorer=exam.scorer,
        decode=tokenizer.decode,
        sampling=exam.config.sampling(),
        prompts_per_step=len(exam.prompts),
        samples=samples,
        seed=seed,
        environment=exam.dialogues.environment(exam.prompts, seed=seed),
        limits=exam.dialogues.limits(64),
        forks=exam.config.history == "template",
    )


def _both(
    episodes: Episodes, talks: Sequence[Conversation], session: DrawingSession
) -> list[tuple[list[int], list[int]]]:
    """Ids that a loss sees, and ids that were drawn, of each dialogue."""
    seen, place = episodes.transcript, 0
    found: list[tuple[list[int], list[int]]] = []
    for one in talks:
        begin, end = int(episodes.offsets[place]), int(episodes.offsets[place + len(one.rows)])
        trained = seen.tokens[seen.at[begin:end]].tolist()
        assert trained == episodes.chosen[begin:end].tolist()
        drawn = [session.drawn[one.request.id, one.sample, turn] for turn in range(one.turns)]
        found.append((trained, [token for own in drawn for token in own]))
        place += len(one.rows)
    return found


def _changes(one: Conversation, session: DrawingSession, tokenizer: Tokenizer) -> bool:
    """Whether a turn of the dialogue would come back as other tokens from its text."""
    drawn = [session.drawn[one.request.id, one.sample, turn][:-1] for turn in range(one.turns)]
    return any(tokenizer.encode(tokenizer.decode(own)).tolist() != own for own in drawn)
