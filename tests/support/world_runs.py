"""Dialogues without a model: a table policy of four tokens (`scripted_session`), a world, and rewards."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripted_session import END, WORDS, ScriptedSession

from hone.core.conversation import Message
from hone.core.episodes import Episodes
from hone.core.generation import Completion, GenerationSession, Request, SamplingParams
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.text.dialogues.config import DialogueTaskConfig, dialogue_examples
from hone.text.dialogues.environment import Bridge, DialogueEnvironment, DialogueRules
from hone.text.dialogues.hosted import WorldDescription
from hone.text.dialogues.hosts import ProcessHost, ThreadHost
from hone.text.evaluate.reward_members import reward_scorer
from hone.text.tasks.conversation import ConversationLimits
from hone.text.tasks.world import Prompt, TextWorld
from hone.text.tools.formats import TOOL_FORMATS

TABLE = np.array(
    [[0.4, 0.3, 0.1, 0.2], [0.3, 0.3, 0.1, 0.3], [0.4, 0.4, 0.1, 0.1], [0.3, 0.3, 0.1, 0.3], [0.5, 0.3, 0.1, 0.1]]
)
LIMITS = ConversationLimits(context=400)
EVERY = "".join(chr(code) for code in range(32, 127)) + "\n"


class PlainTokens:
    """Implements `DialogueTokens`: a token for each character, those of the policy first; messages end with `;`."""

    letters = WORDS + "".join(letter for letter in EVERY if letter not in WORDS)

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.letters.index(letter) for letter in text if letter in self.letters], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return "".join(self.letters[int(one)] for one in ids)

    def for_prompt(self, prompt: Prompt) -> "PlainTokens":
        return self

    def prompt(self, messages: Sequence[Message]) -> np.ndarray:
        return self.encode("".join(f"{message['content']};" for message in messages))

    def bridge(self, history: Sequence[Message], said: str, answer: np.ndarray, new: Sequence[Message]) -> Bridge:
        return Bridge(tokens=self.prompt(new))


@dataclass
class Sayings:
    """Session that says given texts, one in each turn; the last one again and again."""

    texts: Sequence[str]
    queue: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        self.queue += [(one, one.first_sample + k) for one in requests for k in range(one.samples)]

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        if not self.queue:
            return None
        request, sample = self.queue.pop(0)
        text = self.texts[min(request.turn, len(self.texts) - 1)]
        tokens = np.append(PlainTokens().encode(text), END).astype(np.int32)
        cut = len(tokens) > request.sampling.max_tokens
        tokens = tokens[: request.sampling.max_tokens]
        zeros = np.zeros(len(tokens), np.float32)
        return Completion(
            request_id=request.id, sample_index=sample, tokens=tokens, logp=zeros, sampled_logp=zeros,
            version=np.zeros(len(tokens), np.int32), finish_reason="length" if cut else "eos", turn=request.turn,
        )  # fmt: skip

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.queue = [one for one in self.queue if request_ids is not None and one[0].id not in request_ids]

    def reset_stats(self) -> None: ...


@dataclass
class Played:
    """Result of a rollout."""

    episodes: Episodes
    metrics: dict[str, float]
    notes: list[str]
    environment: DialogueEnvironment
    messages: list[list[Message]] = field(default_factory=list)
    calls: list[int | None] = field(default_factory=list)
    """Calls of tools of each dialogue."""


def rules_of(config: DialogueTaskConfig, described: WorldDescription, context: int) -> DialogueRules:
    """Limits of a task's dialogues."""
    tools = config.tools
    return DialogueRules(
        turns=config.turns,
        context=context,
        message_tokens=config.message_tokens,
        format=None if tools is None else TOOL_FORMATS[tools.format],
        schemas=described.schemas,
        begins=described.begins,
        pays=described.pays,
    )


def play(
    task: dict[str, Any],
    *,
    prompts: int = 4,
    samples: int = 2,
    order: int = 0,
    limits: ConversationLimits = LIMITS,
    max_tokens: int = 8,
    rewards: dict[str, Any] | None = None,
    user_code: UserCodeConfig | None = None,
    session: GenerationSession | None = None,
    steps: int = 1,
    threads: bool | None = None,
) -> Played:
    """Lead the dialogues of `steps` rollouts, `prompts` rows by `samples` each; the last rollout's episodes. `threads`:
    of the worlds, in place of processes; unset: as in a run."""
    config = DialogueTaskConfig.model_validate({"size": prompts, **task})
    given = user_code or UserCodeConfig(workers=1)
    in_threads = config.runs_in_threads if threads is None else threads
    host = (ThreadHost if in_threads else ProcessHost)(config.world_spec, given)
    paid = RewardsConfig.model_validate(rewards or {"functions": [{"kind": "world"}]})
    scorer = reward_scorer(paid, limits=given, load=lambda *_: None)  # type: ignore[arg-type]
    tokens, heard = PlainTokens(), list[list[Message]]()
    try:
        rules, rows = rules_of(config, host.describe(), limits.context), dialogue_examples(config, host.rows)
        asked = [
            Prompt(id=row.id, content=row.prompt, tokens=tokens.encode(str(row.prompt)), columns=row.columns)
            for row in rows
        ]
        environment = DialogueEnvironment(host, rules, tokens, asked, seed=5)
        world = TextWorld(
            prompts=asked,
            scorer=scorer,
            decode=lambda ids: tokens.decode(ids).replace("$", ""),
            sampling=SamplingParams(max_tokens=max_tokens),
            prompts_per_step=prompts,
            samples=samples,
            seed=1,
            environment=environment,
            limits=limits,
        )
        for _ in range(steps):
            episodes = world.rollout(session or ScriptedSession(TABLE, seed=3, order=order))
        heard = [list(one.messages) for one in world.conversations]
        calls = [one.effort.tool_calls for one in world.conversations]
        return Played(episodes, environment.pop_metrics(), environment.notes(), environment, heard, calls)
    finally:
        scorer.close()
        host.close()
