"""What the recipes for language models share: how answers are generated, and how they are shown.

Belongs here: wiring that two recipes need. Does not: anything that makes one recipe differ from another.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes, Status
from hone.core.errors import all_at_once
from hone.core.generation import OnPublish, Sampling
from hone.engine.choose import RunnerKind
from hone.engine.clients.config import ServerEngine
from hone.envs.dataset import Examples, overlap
from hone.evaluate.policies import ModelSource, open_tokenizer
from hone.evaluate.text import EvaluationConfig, TextExam, prepare_exam
from hone.models.policy import TokenPolicy
from hone.models.tokenizers import Tokenizer
from hone.objectives.terms import Terms
from hone.rewards.config import RewardsConfig
from hone.rewards.workers import check_functions
from hone.store.samples import SampleRow
from hone.train.flops import token_work
from hone.train.job import Verdict
from hone.train.learner import GradientLearner
from hone.train.optimize import LearnerConfig, policy_phase, schedule
from hone.train.tokens import TokenBatch, TokenRows


class AheadConfig(Config):
    """Answers that are written while the policy learns from earlier ones."""

    steps: int = Field(ge=0, le=16)
    """Steps that an answer's first token may be older than the policy that learns from it; 0 is off."""
    on_publish: Literal["wait", "finish", "recompute", "keep"] = "wait"
    """What becomes of answers that are being written when the policy has been stepped. `wait`: the step waits for all
    of them, and the run can be repeated to the bit. `finish`: it waits for those that have been begun. `recompute`:
    they go on under the new weights, which read the text so far anew. `keep`: they go on over old keys and values."""

    def derived(self) -> dict[str, str]:
        """What it comes to, for `hone plan`."""
        if self.steps == 0:
            return {}
        return {"ahead": f"answers are at most {self.steps} steps old; at a publication: {self.on_publish}"}


class RolloutConfig(Config):
    """How answers are generated in a step."""

    prompts_per_step: int = Field(ge=1)
    """Prompts asked in each step."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Answers to each prompt: the group whose scores are compared."""
    max_tokens: int = Field(ge=1)
    """Most tokens of an answer."""
    temperature: float = Field(default=1.0, gt=0)
    """The policy is softmax(logits / temperature), for the engine and for the trainer."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens only; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Leave out tokens with less than this share of the likeliest one's probability; 0 is off."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Texts that end an answer."""
    runner: RunnerKind | ServerEngine = "auto"
    """What runs the model: `native` compiled code, `native_bfloat16` the same in lower precision, `torch`,
    `torch_compiled` (by torch.compile, for GPUs), or `auto`: native where it can be built. A table instead: a server
    (docs/howto/servers.md)."""
    deterministic: Literal["off", "batch"] = "off"
    """`batch`: on CUDA too no answer depends on what is written beside it; on a CPU none ever does."""
    ahead: Annotated[int, Field(ge=0, le=16)] | AheadConfig = 0
    """Steps that answers may be older than the policy that learns from them: they are collected so far ahead. A table
    instead also says what becomes of them when it changes (docs/concepts/generation.md)."""
    slots: int = Field(default=64, ge=1)
    """Answers that are written at the same time: memory and speed, never the result."""

    @property
    def collecting(self) -> AheadConfig:
        """What `ahead` comes to."""
        return self.ahead if isinstance(self.ahead, AheadConfig) else AheadConfig(steps=self.ahead)

    @property
    def midway(self) -> OnPublish | None:
        """What becomes of answers that are being written at a publication; None where none is."""
        found = self.collecting
        return None if found.steps == 0 or found.on_publish == "wait" else found.on_publish

    def notes(self) -> list[str]:
        """What a person should know before a run."""
        if self.midway is None:
            return []
        return [
            f'rollout.ahead.on_publish = "{self.midway}": which weights drew which token depends on time, so this run '
            'cannot be repeated to the bit (with "wait" it can)'
        ]

    @model_validator(mode="after")
    def _a_server_has_its_own_batches(self) -> "RolloutConfig":
        if isinstance(self.runner, ServerEngine) and self.deterministic != "off":
            raise ValueError(
                f'deterministic = "{self.deterministic}" is a promise of the embedded engine, not of a server '
                "(docs/howto/servers.md); leave it out, or rollout.runner"
            )
        if isinstance(self.runner, ServerEngine) and self.midway:
            raise ValueError(
                f'rollout.ahead.on_publish = "{self.midway}" is for the embedded engine; a step waits '
                'for the answers of a server: set it to "wait"'
            )
        return self

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The rollout's sampling, or its greedy counterpart for evaluation."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=0 if greedy else self.top_k,
            top_p=1.0 if greedy else self.top_p,
            min_p=0.0 if greedy else self.min_p,
            greedy=greedy,
            stop=tuple(self.stop),
        )


STAGE = "stage:"
"""A model path `stage:NAME` means the policy that an earlier stage of the same pipeline leaves behind."""


def check_text(
    model: ModelSource,
    examples: Callable[[], Examples],
    fitting: Callable[[Examples, Tokenizer, int], list[str]],
    *,
    evaluation: EvaluationConfig | None,
    rewards: RewardsConfig | None = None,
) -> list[str]:
    """Everything that can be known to be wrong before a model is loaded, at once; returns warnings.

    `fitting` lays the examples out in a context of so many tokens, and returns its own warnings. What depends on
    something that cannot be read says nothing of its own: its fault is said once.
    """
    read = cache(examples)
    opened = cache(partial(open_tokenizer, model))
    known = model.path is None or not model.path.startswith(STAGE)  # else the folder is not there yet
    checks: dict[str, Callable[[], list[str]]] = {"train": lambda: list(read().warnings)}
    if known:
        checks["model"] = lambda: _end_of_text(opened()[0])
        checks["fits"] = lambda: fitting(read(), *opened())
    if evaluation is not None:
        held_out = cache(evaluation.task.examples)
        checks["evaluation"] = lambda: [*held_out().warnings, *_both(read(), held_out(), evaluation)]
        if known:
            checks["asked"] = lambda: prepare_exam(evaluation, opened()[0], context=opened()[1]).warnings
        checks["judged by"] = lambda: _usable(evaluation.rewards, held_out())
    if rewards is not None and (evaluation is None or rewards != evaluation.rewards):  # starting a process takes time
        checks["rewards"] = lambda: _usable(rewards, read())
    return list(dict.fromkeys(warning for found in all_at_once(checks).values() for warning in found))


def _usable(rewards: RewardsConfig, examples: Examples) -> list[str]:
    check_functions(rewards, examples.column_names())
    return []


def _both(train: Examples, held_out: Examples, evaluation: EvaluationConfig) -> list[str]:
    """Warns of prompts that are in both sets; a generated training set leaves the held-out ones out later."""
    both = overlap(train, held_out)
    if evaluation.task.generated or not both.count:
        return []
    return [f"{both.count} prompts stand in the training and in the evaluation set: {', '.join(both.ids[:5])}"]


def _end_of_text(tokenizer: Tokenizer) -> list[str]:
    if tokenizer.pad_id not in tokenizer.eos_ids:
        return []
    return ["the tokenizer pads with its end of text; hone masks by length, so the end of text is learned all the same"]


def judge_policy(exam: TextExam, policy: TokenPolicy) -> Verdict:
    """The policy as it stands, on the held-out prompts."""
    judged = exam.ask_policy(policy)
    return Verdict(estimate=judged.estimate, metrics=judged.metrics(), answers=judged.rows())


def token_learner(
    config: LearnerConfig,
    policy: TokenPolicy,
    *,
    layout: Callable[[Episodes, Credits], TokenRows],
    objective: Callable[[TokenPolicy, TokenBatch], Terms],
    seed: int,
    steps: int,
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The gradient learner of every recipe on tokens; `steps` is the whole run's, for the learning rate's decay."""
    return GradientLearner(
        policy=policy,
        layout=layout,
        phases=[policy_phase(policy, objective, config)],
        seed=seed,
        learning_rate=schedule(config, config.optimizer_steps(steps)),
        epochs=config.epochs,
        minibatches=config.minibatches,
        shuffle=config.minibatches > 1,
        micro_batch_tokens=config.micro_batch_tokens,
        work=partial(token_work, epochs=config.epochs),
    )


def answer_metrics(episodes: Episodes) -> Metrics:
    """Lengths of the answers, and the policy's entropy as their tokens show it.

    The mean of -log p over tokens drawn from the policy estimates its entropy per token without bias, for nothing.
    """
    lengths = episodes.lengths
    return {
        "answers/tokens_mean": float(lengths.mean()),
        "answers/tokens_longest": float(lengths.max()),
        "policy/entropy_nats": float(-episodes.logp.mean(dtype=np.float64)),
    }


def answer_rows(
    step: int, episodes: Episodes, credits: Credits, tokenizer: Tokenizer, *, most: int = 64
) -> list[SampleRow]:
    """The first `most` answers of a step as a person reads them."""
    shown = episodes.take(np.arange(min(most, len(episodes))))
    seen = shown.transcript
    prompt_ends = seen.at[shown.offsets[:-1]]
    asked: Counter[int] = Counter()
    rows: list[SampleRow] = []
    for place in range(len(shown)):
        start, stop = int(shown.offsets[place]), int(shown.offsets[place + 1])
        scored = shown.status[place] == Status.SCORED
        group = int(shown.group[place])
        asked[group] += 1
        rows.append(
            SampleRow(
                step=step,
                group=group,
                sample=asked[group] - 1,
                prompt=tokenizer.decode(seen.tokens[seen.offsets[place] : prompt_ends[place]]),
                completion=tokenizer.decode(shown.chosen[start:stop].astype(np.int32)),
                score=float(shown.score[place]) if scored else None,
                status=Status(int(shown.status[place])).name.lower(),
                advantage=float(credits.advantage[start]),
                tokens=stop - start,
                finish="length" if shown.truncated[place] else "stop",
                version=int(shown.version[start]),
            )
        )
    return rows
