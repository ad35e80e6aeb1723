"""One small control policy of every kind that hone saves, with weights that are not zero."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hone.control.networks.actor_critic import (
    ActorCritic,
    ChoiceScorer,
    ControlPolicy,
    DeterministicActorCritic,
    QNetworkPolicy,
    SoftActorCritic,
)
from hone.control.networks.discriminator import AdversarialActorCritic
from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.encoding import ImageLayout, RecurrentMemoryConfig, RecurrentUnitConfig
from hone.control.networks.intrinsic_reward import CuriousActorCritic, RndConfig
from hone.control.networks.memory import MemoryActorCritic, RecurrentDqnPolicy
from hone.control.networks.mlp import (
    BoxActions,
    DiscreteActions,
    MlpConfig,
    ObservationInputs,
    PolicyNetworkConfig,
    PolicySpaces,
)
from hone.control.networks.mpc import CemPlanning, ModelPlanner
from hone.control.networks.multitask import MultitaskActorCritic
from hone.control.networks.offline import BcqPolicy, BearPolicy, DiscreteBcqPolicy, IqlPolicy
from hone.control.networks.options import OptionCriticPolicy, OptionTablePolicy
from hone.control.networks.q_networks import CategoricalReturn, DiscreteSacPolicy, DqnPolicy, QArchitecture
from hone.control.networks.recurrent import RecurrentActorCritic

SEEN = 4
"""Numbers of an observation."""
NUMBERS = ObservationInputs(size=SEEN)
NORMALISED = ObservationInputs(size=SEEN, mean=(1.0, -2.0, 0.0, 5.0), scale=(2.0, 0.5, 1.0, 3.0), limit=2.0)
STATES = ObservationInputs(size=SEEN, one_hot=True, start=2)
CHOICES = DiscreteActions(count=3, start=1)
MASKED = DiscreteActions(count=3, start=1, masked=True)
BOX = BoxActions(low=(-2.0, 0.0), high=(1.0, 4.0), shape=(2,), gaussian="clipped")
SQUASHED = BoxActions(low=(-2.0, 0.0), high=(1.0, 4.0), shape=(1, 2), gaussian="squashed")
NUMBERED = PolicySpaces(inputs=NUMBERS, actions=CHOICES)
PAIRS = ObservationInputs(size=2 * CHOICES.count)
NETWORK = MlpConfig(hidden=[16, 16])
RELU = MlpConfig(hidden=[32, 32], activation="relu")


def control_policies() -> dict[str, ControlPolicy]:
    """Policies by a name that tells kind and spaces; every kind of `checkpoint.py` is among them."""
    made = [
        ("ppo choices", ActorCritic(PolicySpaces(inputs=NORMALISED, actions=CHOICES), NETWORK, seed=0)),
        ("ppo masked", ActorCritic(PolicySpaces(inputs=NUMBERS, actions=MASKED), NETWORK, seed=0)),
        ("ppo states", ActorCritic(PolicySpaces(inputs=STATES, actions=CHOICES), NETWORK, seed=0, critic=False)),
        ("ppo clipped", ActorCritic(PolicySpaces(inputs=NORMALISED, actions=BOX), NETWORK, seed=0)),
        ("ppo squashed", ActorCritic(PolicySpaces(inputs=NUMBERS, actions=SQUASHED), RELU, seed=0)),
        ("pairs", ChoiceScorer(PolicySpaces(inputs=PAIRS, actions=MASKED), NETWORK, seed=0)),
        ("sac", SoftActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), RELU, seed=0)),
        ("td3", DeterministicActorCritic(PolicySpaces(inputs=NORMALISED, actions=BOX), RELU, seed=0)),
        ("values", QNetworkPolicy(PolicySpaces(inputs=NUMBERS, actions=CHOICES), RELU, seed=0)),
        ("dqn", DqnPolicy(PolicySpaces(inputs=NUMBERS, actions=CHOICES), RELU, seed=0)),
        (
            "rainbow",
            DqnPolicy(
                PolicySpaces(inputs=NUMBERS, actions=CHOICES),
                NETWORK,
                seed=0,
                architecture=QArchitecture(
                    outcome=CategoricalReturn(low=-3.0, high=3.0, size=5), dueling=True, sigma=0.5, layer_norm=True
                ),
            ),
        ),
        ("recurrent dqn", RecurrentDqnPolicy(NUMBERED, RELU, seed=0, memory=RecurrentUnitConfig(kind="gru", units=5))),
        ("lstm dqn", RecurrentDqnPolicy(NUMBERED, RELU, seed=0, memory=RecurrentUnitConfig(kind="lstm", units=5))),
        ("discrete sac", DiscreteSacPolicy(PolicySpaces(inputs=NUMBERS, actions=CHOICES), RELU, seed=0)),
        ("iql choices", IqlPolicy(PolicySpaces(inputs=NORMALISED, actions=CHOICES), RELU, seed=0)),
        ("iql box", IqlPolicy(PolicySpaces(inputs=NORMALISED, actions=BOX), RELU, seed=0)),
    ]
    masked = DiscreteBcqPolicy(PolicySpaces(inputs=NUMBERS, actions=MASKED), RELU, seed=0, threshold=0.9)
    memory = RecurrentUnitConfig(kind="gru", units=5)
    dueling = RecurrentDqnPolicy(
        PolicySpaces(inputs=NUMBERS, actions=MASKED), RELU, seed=0, memory=memory, dueling=True
    )
    made += [*_further_kinds(), *_with_encoders(), ("discrete bcq masked", masked), ("dueling recurrent dqn", dueling)]
    draws = np.random.default_rng(0)
    for _, policy in made:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.from_numpy(draws.normal(0.0, 0.3, parameter.shape).astype(np.float32)))
    return dict(made)


def _further_kinds() -> list[tuple[str, ControlPolicy]]:
    """Offline, imitating, curious, multitask, recurrent and planning ones, and options."""
    return [
        (
            "discrete bcq",
            DiscreteBcqPolicy(PolicySpaces(inputs=NUMBERS, actions=CHOICES), RELU, seed=0, threshold=0.9),
        ),
        (
            "bcq",
            BcqPolicy(PolicySpaces(inputs=NUMBERS, actions=BOX), RELU, seed=0, max_perturbation=0.1, samples=5),
        ),
        ("bear", BearPolicy(PolicySpaces(inputs=NUMBERS, actions=BOX), RELU, seed=0, samples=5)),
        (
            "gail",
            AdversarialActorCritic(
                PolicySpaces(inputs=NUMBERS, actions=CHOICES), NETWORK, seed=0, discriminator=MlpConfig(hidden=[4])
            ),
        ),
        (
            "curious",
            CuriousActorCritic(
                PolicySpaces(inputs=NUMBERS, actions=CHOICES), NETWORK, seed=0, novelty=RndConfig(), lanes=2
            ),
        ),
        (
            "multitask choices",
            MultitaskActorCritic(PolicySpaces(inputs=NUMBERS, actions=CHOICES), NETWORK, seed=0, tasks=2),
        ),
        (
            "multitask box",
            MultitaskActorCritic(
                PolicySpaces(inputs=NUMBERS, actions=BOX), RELU, seed=0, tasks=2, trunk_sees_task=True
            ),
        ),
        (
            "recurrent",
            RecurrentActorCritic(PolicySpaces(inputs=NUMBERS, actions=CHOICES), MlpConfig(hidden=[8]), seed=0),
        ),
        ("option table", OptionTablePolicy(PolicySpaces(inputs=STATES, actions=CHOICES), NETWORK, options=2)),
        (
            "option critic",
            OptionCriticPolicy(PolicySpaces(inputs=NUMBERS, actions=CHOICES), NETWORK, seed=0, options=2, epsilon=0.1),
        ),
        (
            "planner",
            ModelPlanner(
                PolicySpaces(inputs=NUMBERS, actions=BOX),
                MlpConfig(hidden=[8]),
                seed=0,
                members=2,
                planning=CemPlanning(horizon=3, candidates=8, elites=2, iterations=2),
            ),
        ),
    ]


def _with_encoders() -> list[tuple[str, ControlPolicy]]:
    """Policies that read images, or several observations, or remember."""

    def spaces_of(inputs: ObservationInputs, network: PolicyNetworkConfig, actions: Any = CHOICES) -> PolicySpaces:
        return encoded_spaces(PolicySpaces(inputs=inputs, actions=actions), network)

    def image(shape: tuple[int, ...], *, is_bytes: bool = True) -> ObservationInputs:
        layout = ImageLayout(shape=shape, divisor=255.0 if is_bytes else 1.0, is_bytes=is_bytes)
        return ObservationInputs(size=int(np.prod(shape)), image=layout)

    config = PolicyNetworkConfig(hidden=[8])
    embedding = PolicyNetworkConfig(hidden=[8], encoder="embedding")
    gru, lstm = (RecurrentMemoryConfig(kind=kind, units=5) for kind in ("gru", "lstm"))
    frames = replace(NORMALISED, frames=3, size=3 * SEEN)
    return [
        ("image bytes", ActorCritic(spaces_of(image((10, 10, 4)), config), config, seed=0)),
        ("image numbers", ActorCritic(spaces_of(image((2, 9, 9), is_bytes=False), config), config, seed=0)),
        ("minigrid", ActorCritic(spaces_of(image((7, 7, 3)), config), config, seed=0)),
        ("image dqn", DqnPolicy(spaces_of(image((10, 10, 4)), config), RELU, seed=0)),
        ("embedding", ActorCritic(spaces_of(STATES, embedding), embedding, seed=0)),
        ("gru", MemoryActorCritic(PolicySpaces(inputs=NORMALISED, actions=MASKED), config, seed=0, memory=gru)),
        ("lstm", MemoryActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), config, seed=0, memory=lstm)),
        ("gru of images", MemoryActorCritic(spaces_of(image((10, 10, 4)), config), config, seed=0, memory=gru)),
        ("frames", ActorCritic(PolicySpaces(inputs=frames, actions=SQUASHED), config, seed=0)),
    ]


def observations(policy: ControlPolicy, count: int, seed: int = 0) -> np.ndarray:
    """Random observations `[count, ...]` of a policy."""
    draws, inputs = np.random.default_rng(seed), policy.spaces.inputs
    encoder = inputs.encoder
    if encoder is not None and encoder.shape:
        if inputs.image is not None and inputs.image.is_bytes:
            return draws.integers(0, 3 if encoder.kind == "minigrid" else 256, (count, *encoder.shape), np.uint8)
        return draws.random((count, *encoder.shape)).astype(np.float32)
    if inputs.one_hot or encoder is not None:
        states = inputs.size if encoder is None else encoder.count
        return draws.integers(inputs.start, inputs.start + states, count)
    numbers = draws.normal(0.0, 3.0, (count, inputs.size // inputs.frames)).astype(np.float32)
    if isinstance(policy, MultitaskActorCritic):  # the last numbers name the task
        numbers[:, -policy.tasks :] = np.eye(policy.tasks)[draws.integers(0, policy.tasks, count)]
    return numbers


def legal(policy: ControlPolicy, count: int) -> np.ndarray | None:
    """Random masks `[count, choices]` of a policy of legal actions; None for others."""
    actions = policy.spaces.actions
    if not isinstance(actions, DiscreteActions) or not actions.masked:
        return None
    mask = np.random.default_rng(1).random((count, actions.count)) < 0.5
    mask[np.arange(count), np.arange(count) % actions.count] = True
    return mask
