"""Distance of a policy from where it started, measured on answers that it draws itself.

Belongs here: sampling for a run whose data come from a log. On a log's own answers the distance cannot be seen: a
preference loss moves probability to answers that stand in no pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.generation import Request, SamplingParams, generate
from hone.core.ragged import row_sums
from hone.core.random import permutation
from hone.core.state import State, integer, substate
from hone.models.language.token_policy import TokenPolicy
from hone.run.wrapper import SourceWrapper
from hone.text.evaluate.engine_actor import make_engine
from hone.text.tasks.world import supervised_episodes

KL_TO_START = "preference/kl_to_start_nats"


class SamplesConfig(Config):
    """Answers that are drawn to measure the distance of the policy from where it started."""

    prompts: int = Field(default=64, ge=0)
    """Prompts of the data that are answered, once each; 0 measures nothing."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of an answer; unset: that of the longest answer of the data."""
    every: int | None = Field(default=None, ge=1)
    """Steps between measurements; unset: a tenth of the run. The last step is always measured."""


@dataclass
class StartDistance(SourceWrapper[TokenPolicy]):
    """Another source that measures KL(policy || start) on answers of the policy, as `preference/kl_to_start_nats`.

    The estimate is the mean over answers of log pi - log pi_start in nats, unbiased for the KL of whole answers. The
    start is loaded for a measurement and dropped again.
    """

    logp: Callable[[TokenPolicy, Episodes], NDArray[np.floating]]
    """Policy and episodes -> log-probability of each token `[N]`, nats."""
    open_start: Callable[[], TokenPolicy]
    """Loads the policy as the run started."""
    prompts: Sequence[NDArray[np.int32]]
    """Prompts that are answered."""
    max_tokens: int
    every: int
    steps: int
    seed: int
    step: int = 0
    """Steps of the run so far."""
    measured: Metrics = field(default_factory=dict[str, float])
    """The distance at an iteration that measures it; empty at the others."""

    def collect(self) -> Episodes:
        self.step += 1
        return self.source.collect()

    def publish(self, policy: TokenPolicy) -> None:
        self.source.publish(policy)
        due = self.step > 0 and (self.step % self.every == 0 or self.step == self.steps)
        self.measured = {KL_TO_START: self.measure(policy)} if due else {}

    def measure(self, policy: TokenPolicy) -> float:
        """Estimate of KL(policy || start) in nats per answer, on answers whose draws depend on the step alone."""
        engine = make_engine(
            policy,
            slots=len(self.prompts),
            longest_prompt=max(len(prompt) for prompt in self.prompts),
            max_tokens=self.max_tokens,
            seed=self.seed,
        )
        sampling = SamplingParams(max_tokens=self.max_tokens, temperature=policy.temperature)
        requests = [
            Request(id=f"start distance {place}", prompt=prompt, samples=1, sampling=sampling)
            for place, prompt in enumerate(self.prompts)
        ]
        answers = {one.request_id: one.tokens for one in generate(engine, requests, round=self.step)}
        episodes = supervised_episodes(self.prompts, [answers[request.id] for request in requests])
        gap = self.logp(policy, episodes) - self.logp(self.open_start(), episodes)
        return float(row_sums(gap, episodes.offsets).mean())

    def metrics(self) -> Metrics:
        return {**self.source.metrics(), **self.measured}

    def state(self) -> State:
        return {"source": self.source.state(), "step": self.step}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.step = integer(state, "step")


def prompts_to_answer(log: Episodes, count: int, *, seed: int) -> list[NDArray[np.int32]]:
    """Up to `count` different prompts of a log, drawn without repeats; a prompt has at least one token."""
    seen = log.transcript
    begins, ends = seen.offsets[:-1], seen.at[log.offsets[:-1]]
    found: dict[bytes, NDArray[np.int32]] = {}
    for row in permutation(seed, "start distance", 0, count=len(log)).tolist():
        if len(found) == count:
            break
        prompt = seen.tokens[begins[row] : ends[row]]
        found.setdefault(prompt.tobytes(), prompt)
    return list(found.values())
