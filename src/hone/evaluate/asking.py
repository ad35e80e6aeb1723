"""Asking a token policy: prompts made ready, the engine as an actor, reward functions as a judge."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hone.core.errors import ConfigError, DataError
from hone.core.generation import Completion, Request
from hone.core.state import State
from hone.engine.engine import Engine
from hone.envs.dataset import Example, Examples
from hone.envs.text import Answer, Prompt
from hone.envs.text_files import SHOWN
from hone.envs.text_task import TaskConfig
from hone.models.policy import TokenPolicy
from hone.models.tokenizers import Tokenizer
from hone.rewards.budget import Budget
from hone.rewards.config import RewardsConfig
from hone.rewards.jobs import RewardBatch, Ticket
from hone.rewards.scores import Scores
from hone.rewards.workers import WorkerPool


@dataclass
class EngineActor:
    """The embedded engine as an actor: it draws from the trainer's own weights."""

    engine: Engine

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        return self.engine.generate(requests)

    def publish(self, policy: TokenPolicy, version: int) -> None:
        """The weights are the engine's already; it only has to forget what it computed from older ones."""
        del policy
        self.engine.publish(version)


@dataclass
class PoolJudge:
    """Reward functions in their worker processes, and the budget of answers that may go unscored."""

    pool: WorkerPool
    budget: Budget
    unsaid: list[str] = field(default_factory=list[str])

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
                groups=[0] * len(answers),  # all of them answer one prompt
            )
        )

    def state(self) -> State:
        return self.budget.state()

    def restore(self, state: State) -> None:
        self.budget.restore(state)

    def gather(self, tickets: Sequence[Ticket]) -> Scores:
        scores = self.pool.gather(*tickets)
        self.unsaid.extend(
            f"a reward function failed, and will do so silently from now on: {text}" for text in scores.tracebacks
        )
        self.budget.observe(scores)
        return scores

    def notes(self) -> list[str]:
        """What the functions' authors should read: one traceback for each distinct error, said once."""
        notes, self.unsaid = self.unsaid, []
        return notes


def pool_judge(config: RewardsConfig) -> PoolJudge:
    budget = Budget(allowed=config.missing_allowed, window=config.missing_window, barren_batches=config.barren_batches)
    return PoolJudge(WorkerPool(config), budget)


def make_engine(policy: TokenPolicy, *, slots: int, longest_prompt: int, max_tokens: int, seed: int) -> Engine:
    """An engine over the policy's own module, with room for its longest prompt and answer."""
    tokenizer = policy.tokenizer
    return Engine(
        policy.decoder,
        tokenizer.decode,
        eos_id=tokenizer.eos_ids,
        slots=slots,
        max_len_tokens=longest_prompt + max_tokens,
        seed=seed,
        vocab_size_used=tokenizer.size,
    )


def make_prompts(
    examples: Examples, task: TaskConfig, tokenizer: Tokenizer, *, room: int
) -> tuple[list[Prompt], list[str]]:
    """Prompts as tokens, and warnings.

    Raises DataError naming the prompts that have more than `room` tokens, unless `task.on_long_prompt` says what to do
    with them, and ConfigError when there is no room at all.
    """
    if room < 1:
        raise ConfigError(
            f"max_tokens takes the model's whole context and leaves {room} tokens for a prompt; lower max_tokens, or "
            "take a model with more positions"
        )
    prompts = [_prompt(example, task, tokenizer) for example in examples]
    long = [prompt for prompt in prompts if len(prompt.tokens) > room]
    if not long:
        return prompts, []
    shown = ", ".join(f"{prompt.id} ({len(prompt.tokens)} tokens)" for prompt in long[:SHOWN])
    said = (
        f"{examples.source}: {len(long)} of {len(prompts)} prompts are longer than the {room} tokens that the model's "
        f"context leaves for a prompt: {shown}{', ...' if len(long) > SHOWN else ''}"
    )
    if task.on_long_prompt == "truncate":
        return [replace(prompt, tokens=prompt.tokens[-room:]) for prompt in prompts], [f"{said} (their ends are kept)"]
    if task.on_long_prompt == "error" or len(long) == len(prompts):
        raise DataError(
            f"{said}; shorten them, lower max_tokens, take a model with more positions, or set task.on_long_prompt = "
            '"drop" or "truncate"'
        )
    return [prompt for prompt in prompts if len(prompt.tokens) <= room], [f"{said} (dropped)"]


def _prompt(example: Example, task: TaskConfig, tokenizer: Tokenizer) -> Prompt:
    turns = task.fill(example.prompt, example.columns)
    tokens = tokenizer.encode(turns) if isinstance(turns, str) else tokenizer.apply_chat(turns)
    return Prompt(id=example.id, turns=turns, tokens=tokens, columns=example.columns)
