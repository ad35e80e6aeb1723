"""Dialogues without a model: a table policy of four tokens (`scripted_session`), a world, and rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripted_session import WORDS, ScriptedSession

from hone.core.conversation import Message
from hone.core.episodes import Episodes
from hone.core.generation import SamplingParams
from hone.envs.dialogue.config import DialogueTaskConfig
from hone.envs.dialogue.environment import Bridge, DialogueEnvironment, DialogueRules
from hone.envs.dialogue.process_host import ProcessHost
from hone.envs.dialogue.rows import dialogue_examples
from hone.envs.dialogue.thread_host import ThreadHost
from hone.envs.text.conversation import ConversationLimits
from hone.envs.text.world import Prompt, TextWorld
from hone.envs.tools.formats import TOOL_FORMATS
from hone.evaluate.text.reward_members import reward_scorer
from hone.rewards.config import RewardsConfig

TABLE = np.array(
    [[0.4, 0.3, 0.1, 0.2], [0.3, 0.3, 0.1, 0.3], [0.4, 0.4, 0.1, 0.1], [0.3, 0.3, 0.1, 0.3], [0.5, 0.3, 0.1, 0.1]]
)
EVERY = "".join(chr(code) for code in range(32, 127)) + "\n"


class PlainTokens:
    """Implements `DialogueTokens`: a token for each character, those of the policy first; messages end with `;`."""

    letters = WORDS + "".join(letter for letter in EVERY if letter not in WORDS)

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.letters.index(letter) for letter in text if letter in self.letters], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return "".join(self.letters[int(one)] for one in ids)

    def prompt(self, messages: Sequence[Message]) -> np.ndarray:
        return self.encode("".join(f"{message['content']};" for message in messages))

    def bridge(self, history: Sequence[Message], said: str, answer: np.ndarray, new: Sequence[Message]) -> Bridge:
        return Bridge(tokens=self.prompt(new))


@dataclass
class Played:
    """Result of a rollout."""

    episodes: Episodes
    metrics: dict[str, float]
    notes: list[str]
    environment: DialogueEnvironment
    messages: list[list[Message]] = field(default_factory=list)


def play(
    task: dict[str, Any],
    *,
    prompts: int = 4,
    samples: int = 2,
    order: int = 0,
    slots: int = 2**20,
    context: int = 400,
    max_tokens: int = 8,
    rewards: dict[str, Any] | None = None,
    session: ScriptedSession | None = None,
    steps: int = 1,
) -> Played:
    """Lead the dialogues of `steps` rollouts, `prompts` rows by `samples` each; the last rollout's episodes."""
    config = DialogueTaskConfig.model_validate({"size": prompts, **task})
    host = (ThreadHost if config.world.isolate == "thread" else ProcessHost)(config.world_spec, config.world)
    tokens, tools = PlainTokens(), config.tools
    given = RewardsConfig.model_validate(
        {"functions": [{"kind": "world"}], "max_unscored_batches": 10**6, "missing_window": 10**6, **(rewards or {})}
    )
    scorer = reward_scorer(given, load=lambda *_: None)  # type: ignore[arg-type]
    try:
        described = host.describe()
        rows = dialogue_examples(config, host)
        asked = [
            Prompt(id=row.id, content=row.prompt, tokens=tokens.encode(str(row.prompt)), columns=row.columns)
            for row in rows
        ]
        rules = DialogueRules(
            turns=config.turns,
            context=context,
            message_tokens=config.world.message_tokens,
            result_tokens=64 if tools is None else tools.result_tokens,
            invalid_in_a_row=3 if tools is None else tools.invalid_in_a_row,
            format=None if tools is None else TOOL_FORMATS[tools.format],
            schemas=described.schemas,
            begins=described.begins,
            pays=described.pays,
        )
        environment = DialogueEnvironment(host, rules, tokens, asked, seed=5)
        heard: list[list[Message]] = []
        end = environment.end

        def noted(conversation: Any) -> None:
            heard.append(list(conversation.messages))
            end(conversation)

        environment.end = noted  # type: ignore[method-assign]
        world = TextWorld(
            prompts=asked,
            scorer=scorer,
            decode=lambda ids: tokens.decode(ids).replace("$", ""),
            sampling=SamplingParams(max_tokens=max_tokens),
            prompts_per_step=prompts,
            samples=samples,
            seed=1,
            environment=environment,
            limits=ConversationLimits(context=context, slots=slots),
        )
        for _ in range(steps):
            episodes = world.rollout(session or ScriptedSession(TABLE, seed=3, order=order))
        return Played(episodes, environment.pop_metrics(), environment.notes(), environment, heard)
    finally:
        scorer.close()
        host.close()
