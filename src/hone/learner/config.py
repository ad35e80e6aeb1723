"""Config of the gradient learner: learning rate and schedule, clipping, batches."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from torch import nn

from hone.core.config import Config
from hone.core.reduction import Reduction
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import OptimizerPhase, TensorBatch, TrainingRows
from hone.learner.share import ParameterStore, sharded_store
from hone.objectives.terms import LossTerms

P = TypeVar("P", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


class OptimizerConfig(Config):
    """AdamW and its learning rate."""

    lr: float = Field(gt=0)
    """Peak learning rate; above 1 it needs `--yes`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the rate rises linearly from 0."""
    lr_decay: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule from the end of the warm-up to the last optimizer step."""
    final_lr: float = Field(default=0.0, ge=0)
    """Final learning rate of a decay."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay (AdamW)."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """Decay rates of Adam's two moments."""
    max_grad_norm: float | None = Field(default=1.0, ge=0)
    """Clip gradients to this global L2 norm; 0: no clipping."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each step's episodes."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens per forward pass: changes the use of memory, never the result."""


class LearnerConfig(OptimizerConfig):
    """AdamW, epochs and minibatches."""

    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass."""

    def optimizer_steps(self, steps: int) -> int:
        """Optimizer steps in `steps` iterations."""
        return steps * self.epochs * self.minibatches


class ReplayLearnerConfig(OptimizerConfig):
    """AdamW on samples of a replay buffer or a log."""

    updates_per_iteration: int = Field(default=1, ge=1)
    """Optimizer steps per iteration, each on a sample of its own."""
    products: Literal["float32", "bfloat16"] = "float32"
    """Numbers that hidden layers multiply while learning: `bfloat16` rounds weights, units and derivatives before each
    product and adds up in float32. It takes a CPU with AVX-512 BF16 or AMX, and ReLU networks without layer
    normalisation; weights, optimizer, first and last layers, and acting stay float32."""

    def optimizer_steps(self, steps: int) -> int:
        """Optimizer steps in `steps` iterations."""
        return steps * self.epochs * self.updates_per_iteration


def require_whole_minibatches(config: LearnerConfig, count: int, keys: str) -> None:
    """Minibatches of one size: an optimizer step over fewer would weigh its rows more.

    `count` is what a pass is cut up from, `what` the keys it comes from. Raises ValueError with the nearest values.
    """
    if count % config.minibatches == 0:
        return
    fitting = [number for number in range(1, count + 1) if count % number == 0]
    near = sorted(sorted(fitting, key=lambda number: abs(number - config.minibatches))[:2])
    below = count // config.minibatches * config.minibatches
    sizes = [str(size) for size in (below, below + config.minibatches) if size]
    raise ValueError(
        f"{keys} = {count} cannot be cut into learner.minibatches = {config.minibatches} of one size; nearest: "
        f"learner.minibatches = {' or '.join(map(str, near))}, or {keys} = {' or '.join(sizes)}"
    )


MIN_LR_WITHOUT_MASTER_WEIGHTS = 1e-4
"""A bfloat16 weight has 8 significant bits: at 1e-4 a step of Adam still moves 88% of weights of std 0.02, at 1e-5 15%,
at 1e-6 2%."""


def require_master_weights(config: OptimizerConfig, weights: str) -> None:
    """Raises ValueError for steps that weights of this type would round away."""
    if weights == "bfloat16" and config.lr < MIN_LR_WITHOUT_MASTER_WEIGHTS:
        raise ValueError(
            f'learner.lr = {config.lr:g} with model.weights = "bfloat16": such steps are smaller than the rounding of '
            'most weights (8 significant bits), so that the policy would hardly train; keep model.weights = "float32" '
            f'(model.compute = "bfloat16" is as fast), or take an lr of at least {MIN_LR_WITHOUT_MASTER_WEIGHTS:g}'
        )


def learning_rate_schedule(config: OptimizerConfig, total: int) -> Callable[[int], float]:
    """Optimizer step (0-based) of `total` -> learning rate."""

    def rate(update: int) -> float:
        if update < config.warmup_steps:
            return config.lr * (update + 1) / config.warmup_steps
        if config.lr_decay == "constant":
            return config.lr
        done = min(1.0, (update - config.warmup_steps) / max(1, total - config.warmup_steps))
        shape = 1.0 - done if config.lr_decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return config.final_lr + (config.lr - config.final_lr) * shape

    return rate


def adamw(parameters: ParameterStore, config: OptimizerConfig) -> Adam:
    """The optimizer of a config."""
    first, second = config.betas
    return Adam(parameters, weight_decay=config.weight_decay, betas=(first, second))


def policy_phase(
    policy: P,
    objective: Callable[[P, B], LossTerms],
    config: OptimizerConfig,
    *,
    name: str = "policy",
    prepare: Callable[[P, Any, int, Reduction], TrainingRows[B]] | None = None,
    on_micro_batch: Callable[[B, LossTerms], None] | None = None,
    objective_with_backward: Callable[[P, B], LossTerms] | None = None,
) -> OptimizerPhase[P, B]:
    """The one phase of a policy-gradient or supervised learner: every parameter of `policy`, AdamW. `name` begins the
    names of its metrics."""
    parameters = sharded_store(policy)
    if parameters is None:
        parameters = FlatParameters(policy.parameters(), (name for name, _ in policy.named_parameters()))
    return OptimizerPhase(
        name=name,
        objective=objective,
        parameters=parameters,
        optimizer=adamw(parameters, config),
        max_grad_norm=config.max_grad_norm or None,
        prepare=prepare,
        on_micro_batch=on_micro_batch,
        objective_with_backward=objective_with_backward,
    )
