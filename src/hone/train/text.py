"""What the recipes for language models share: the policy, prompts made ready, the engine as an actor, rewards as a judge.

Belongs here: wiring that two recipes need. Does not: anything that makes one recipe differ from another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes, Status
from hone.core.errors import DataError, Faults
from hone.core.generation import Completion, Generator, Request, Sampling
from hone.engine.engine import Engine
from hone.envs.dataset import Example, Examples
from hone.envs.text import Answer, Prompt
from hone.envs.text_task import TaskConfig
from hone.models.decoder import Decoder
from hone.models.folder import load_weights, save_model
from hone.models.outlook import Outlook
from hone.models.tokenizers import Tokenizer
from hone.rewards.budget import Budget
from hone.rewards.config import RewardsConfig
from hone.rewards.jobs import RewardBatch, Ticket
from hone.rewards.scores import Scores
from hone.rewards.workers import WorkerPool
from hone.store.samples import SampleRow
from hone.train.tokens import TokenBatch


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
    stop: list[str] = []
    """Texts that end an answer."""
    slots: int = Field(default=64, ge=1)
    """Answers that are written at the same time: memory and speed, never the result."""

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The rollout's sampling, or its greedy counterpart for evaluation."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=0 if greedy else self.top_k,
            top_p=1.0 if greedy else self.top_p,
            greedy=greedy,
            stop=tuple(self.stop),
        )


class TokenPolicy(nn.Module):
    """A decoder and the tokenizer it speaks with."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, temperature: float = 1.0) -> None:
        super().__init__()
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.temperature = temperature

    def outlook(self, batch: TokenBatch, *, entropy: bool = False) -> Outlook:
        """Log-probabilities (and entropies) `[n]` of the batch's decisions, with gradient."""
        hidden = self.decoder.hidden(batch.packed)[batch.at]
        return self.decoder.outlook(
            hidden, batch.chosen, self.temperature, entropy=entropy, vocab_size_used=self.tokenizer.size
        )

    def save(self, folder: Path) -> None:
        """A Hugging Face folder: weights, config, tokenizer."""
        save_model(self.decoder, folder, tokenizer_from=None)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> None:
        """Take up, in place, the weights of a folder that `save` wrote."""
        load_weights(self.decoder, folder)


@dataclass
class EngineActor:
    """The embedded engine as an actor: it draws from the trainer's own weights."""

    engine: Engine

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        return self.engine.generate(requests)

    def publish(self, policy: TokenPolicy, version: int) -> None:
        self.engine.publish(version)


@dataclass
class PoolJudge:
    """Reward functions in their worker processes, and the budget of answers that may go unscored."""

    pool: WorkerPool
    budget: Budget

    def submit(self, answers: Sequence[Answer]) -> Ticket:
        names = answers[0].columns.keys()
        chat = not isinstance(answers[0].prompt, str)
        return self.pool.submit(
            RewardBatch(
                prompts=[answer.prompt for answer in answers],
                completions=[
                    [{"role": "assistant", "content": answer.text}] if chat else answer.text for answer in answers
                ],
                columns={name: [answer.columns[name] for answer in answers] for name in names},
            )
        )

    def gather(self, tickets: Sequence[Ticket]) -> Scores:
        scores = self.pool.gather(*tickets)
        self.budget.observe(scores)
        return scores


def pool_judge(config: RewardsConfig) -> PoolJudge:
    budget = Budget(
        allowed=config.missing_allowed, window=config.missing_window, barren_batches=config.barren_batches
    )
    return PoolJudge(WorkerPool(config), budget)


def make_engine(policy: TokenPolicy, *, slots: int, longest_prompt: int, max_tokens: int, seed: int) -> Engine:
    """An engine over the policy's own module, with room for its longest prompt and answer."""
    tokenizer = policy.tokenizer
    return Engine(
        policy.decoder,
        tokenizer.decode,
        eos_id=tokenizer.eos_id,
        slots=slots,
        max_len_tokens=longest_prompt + max_tokens,
        seed=seed,
        vocab_size_used=tokenizer.size,
    )


def make_prompts(examples: Examples, task: TaskConfig, tokenizer: Tokenizer, *, room: int) -> list[Prompt]:
    """Prompts as tokens. Raises DataError naming every prompt that has more than `room` tokens."""
    prompts = [_prompt(example, task, tokenizer) for example in examples]
    long = [prompt for prompt in prompts if len(prompt.tokens) > room]
    if long:
        shown = ", ".join(f"{prompt.id} ({len(prompt.tokens)} tokens)" for prompt in long[:5])
        raise DataError(
            f"{examples.source}: {len(long)} of {len(prompts)} prompts are longer than the {room} tokens that the model's "
            f"context leaves for a prompt: {shown}; shorten them, lower rollout.max_tokens, or take a model with more "
            "positions"
        )
    return prompts


def _prompt(example: Example, task: TaskConfig, tokenizer: Tokenizer) -> Prompt:
    turns = task.fill(example.prompt)
    tokens = tokenizer.encode(turns) if isinstance(turns, str) else tokenizer.apply_chat(turns)
    return Prompt(id=example.id, turns=turns, tokens=tokens, columns=example.columns)


def answer_rows(
    step: int, episodes: Episodes, credits: Credits, tokenizer: Tokenizer, *, most: int = 64
) -> list[SampleRow]:
    """The first `most` answers of a step as a person reads them."""
    shown = episodes.take(np.arange(min(most, len(episodes))))
    seen = shown.transcript
    prompt_ends = seen.at[shown.offsets[:-1]]
    number = np.arange(len(shown)) - np.searchsorted(shown.group, shown.group)
    rows: list[SampleRow] = []
    for place in range(len(shown)):
        start, stop = int(shown.offsets[place]), int(shown.offsets[place + 1])
        scored = shown.status[place] == Status.SCORED
        rows.append(
            SampleRow(
                step=step,
                group=int(shown.group[place]),
                sample=int(number[place]),
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
