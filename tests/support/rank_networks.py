"""Networks beside a dense policy in a session of ranks: a critic, reward models, adapters, a frozen reference."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.support import rank_session as session

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.learner.adam import restore_weights, stored_weights
from hone.learner.config import LearnerConfig, policy_phase
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner
from hone.learner.natural_gradient import TrustRegionLearner, k3_distance
from hone.learner.share import building_for, sharded_store, shared_network, sharing, trained_policy
from hone.models.language.lora import LoraAdapter, LoraConfig
from hone.models.language.scalar_head import TokenScorer, ValueNetwork, new_scalar_head
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.natural import TrustRegion
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.parallel.group import GroupReduction, RankGroup
from hone.parallel.ranked_job import RankWork
from hone.parallel.sharded_build import ShardedBuild
from hone.recipes.registry import load_recipe
from hone.text.critic import CriticView, SquaredErrorLoss
from hone.text.reference_policies import TextPolicies
from hone.text.rows import TokenBatch, TokenLayout
from hone.text.scorers.scorer_job import scorer_learner

Results = dict[str, NDArray[np.generic]]


@dataclass(kw_only=True)
class BuiltLearner:
    """A learner of one of the networks, and the batch that it learns from."""

    learner: GradientLearner[Any, Any]
    episodes: Episodes
    credits: Credits
    ask: Callable[[Episodes], NDArray[Any]]
    """Numbers of the network, or of a frozen one, about episodes."""


def decoder_of(dtype: str):
    return session.tiny_policy(dtype).decoder


def adapter_of(dtype: str, decoder: Any) -> LoraAdapter:
    adapter = LoraAdapter(decoder, LoraConfig(rank=2).settings(session.CONFIG), base_folder=Path(), base_sha256="")
    draws = np.random.default_rng(3)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.copy_(torch.from_numpy(0.1 * draws.normal(size=tuple(factor.shape))))
    adapter.merge()
    return adapter


def critic(dtype: str, config: LearnerConfig) -> BuiltLearner:
    """A critic of squared errors."""
    episodes, credits = session.batch(session.tiny_policy(dtype))
    network = ValueNetwork(decoder_of(dtype), outputs=1)
    with torch.no_grad():
        network.head.weight.copy_(torch.linspace(-1, 1, 18)[None])
    network = shared_network(network)
    view = CriticView(SquaredErrorLoss(), TokenLayout(scheme=token_mean), config.micro_batch_tokens)
    learner = GradientLearner(
        policy=network,
        layout=partial(view.rows, network),
        phases=[policy_phase(network, view.objective, config, name="critic")],
        seed=5,
        learning_rate=lambda _: config.lr,
        micro_batch_tokens=config.micro_batch_tokens,
        shuffle=False,
    )
    return BuiltLearner(
        learner=learner, episodes=episodes, credits=credits, ask=lambda asked: view.values(network, asked).value
    )


def scorer(dtype: str, config: LearnerConfig, *, adapted: bool = False) -> BuiltLearner:
    """A reward model of outcomes."""
    found = load_recipe("reward_outcome").config.model_validate(
        {"recipe": "reward_outcome", "name": "x", "steps": 3, "task": {"source": "x"}, "model": {"path": "x"},
         "learner": config.model_dump()}
    )  # fmt: skip
    policy = session.tiny_policy(dtype)
    episodes, _ = session.batch(policy)
    episodes = episodes.keep_decisions(np.isin(np.arange(episodes.decisions), episodes.offsets[1:] - 1))
    decoder = decoder_of(dtype)
    decoder.head = None
    model = new_scalar_head(decoder, seed=4).to(policy.decoder.dtype)
    built = TokenScorer(model, policy.tokenizer, adapter=adapter_of(dtype, decoder) if adapted else None)
    labels = np.arange(episodes.decisions, dtype=np.float32) % 2
    learner = scorer_learner(found, built)
    return BuiltLearner(
        learner=learner, episodes=episodes, credits=Credits(advantage=labels), ask=lambda asked: np.zeros(len(asked))
    )


def policy(dtype: str, config: LearnerConfig, *, adapted: bool = False) -> BuiltLearner:
    """A policy, with or without an adapter; asked for nothing."""
    found = session.tiny_policy(dtype)
    episodes, credits = session.batch(found)
    if adapted:
        found = TokenPolicy(found.decoder, found.tokenizer, adapter=adapter_of(dtype, found.decoder))
    learner = session.make_learner(found, config)
    return BuiltLearner(
        learner=learner, episodes=episodes, credits=credits, ask=lambda asked: np.zeros(asked.decisions)
    )


def reference(dtype: str, config: LearnerConfig) -> BuiltLearner:
    """A policy with an adapter, and a frozen copy of its base, which is asked."""
    found = session.tiny_policy(dtype)
    adapted = TokenPolicy(found.decoder, found.tokenizer, adapter=adapter_of(dtype, found.decoder))
    policies = TextPolicies(
        policy=adapted,
        open_frozen=lambda _: adapted.base_policy(),
        micro_batch_tokens=config.micro_batch_tokens,
        device="cpu",
    )
    ask = policies.logp(policies.reference())
    episodes, credits = session.batch(found)
    learner = session.make_learner(adapted, config)
    return BuiltLearner(learner=learner, episodes=episodes, credits=credits, ask=ask)


def trust_region(dtype: str) -> tuple[TokenPolicy, TrustRegionLearner[Any, Any]]:
    """A policy that steps along a natural gradient, and its learner."""
    policy = session.tiny_policy(dtype)
    stepped = trained_policy(policy)

    def surrogate(policy: TokenPolicy, batch: TokenBatch) -> tuple[LossTerms, torch.Tensor]:
        logp = policy.token_logprobs(batch.packed, batch.at, batch.chosen).logp
        return LossTerms(loss=-logp * batch.advantage), k3_distance(logp, batch.behaviour_logp)

    return policy, TrustRegionLearner(
        policy=stepped,
        layout=TokenLayout(scheme=token_mean),
        surrogate=surrogate,
        parameters=sharded_store(stepped) or FlatParameters(stepped.parameters()),
        region=TrustRegion(iterations=3, min_gain_share=0.0, max_kl_nats=1e9),
        micro_batch_tokens=40,
    )


KINDS: Mapping[str, Callable[[str, LearnerConfig], BuiltLearner]] = {
    "policy": policy,
    "critic": critic,
    "scorer": scorer,
    "adapter": partial(policy, adapted=True),
    "reference": reference,
    "adapted_scorer": partial(scorer, adapted=True),
}


def first_moments(learner: GradientLearner[Any, Any]) -> NDArray[np.generic]:
    """Moments `[P]` after a step: the gradient, but for a factor."""
    (phase,) = learner.state()["phases"].values()  # pyright: ignore[reportAttributeAccessIssue]
    return np.concatenate([value.ravel() for value in phase["exp_avg"].values()])


def alone(kind: str, dtype: str) -> Results:
    """Gradient of a step, and answers after it, of one process."""
    built = KINDS[kind](dtype, session.ONE_STEP)
    built.learner.update(built.episodes, built.credits)
    return {"gradient": first_moments(built.learner), "answers": built.ask(built.episodes)}


def on_ranks(group: RankGroup, kind: str, dtype: str) -> Results:
    """The same of all ranks; how many bytes each of them keeps; a resume against the run that went on."""
    before, build = live_bytes(), ShardedBuild(group)
    with building_for(build):
        built = KINDS[kind](dtype, session.ONE_STEP)
    work = RankWork(learner=built.learner, group=group, twins=build.twins, questions=build.questions)
    build.ask_ranks = work.answer
    for twin in build.twins:
        twin.scatter(group)
        twin.gather(group)
        if not group.is_driver:
            twin.forget_whole()
    work.update(built.episodes, built.credits)
    gradient = first_moments(built.learner)
    with sharing(group.share()):
        answers = built.ask(built.episodes)
    kept = np.array([live_bytes() - before], np.float64)
    return {
        "gradient": gradient,
        "answers": answers,
        "bytes": np.concatenate(GroupReduction(group.rank).gather(kept)),
        **(resumed(group, built, work, build) if not build.twins else {}),
    }


def resumed(group: RankGroup, built: BuiltLearner, work: RankWork, build: ShardedBuild) -> Results:
    """Weights of a critic after another step: of the run that went on, and of one that took up its state."""
    (phase,) = built.learner.phases
    state = {"learner": work.state(), "weights": stored_weights(phase.parameters)}
    whole = group.send(state if group.is_driver else None)
    work.update(built.episodes, built.credits)
    on = stored_weights(phase.parameters)
    restore_weights(phase.parameters, whole["weights"], what="critic", remedy="")  # pyright: ignore[reportArgumentType]
    work.restore(whole["learner"])  # pyright: ignore[reportArgumentType]
    work.update(built.episodes, built.credits)
    again = stored_weights(phase.parameters)
    flat = [np.concatenate([value.ravel() for value in one.values()]) for one in (on, again)]
    return {"on": flat[0], "resumed": flat[1]}


def bytes_alone(kind: str, dtype: str) -> float:
    """Bytes that one process keeps."""
    before = live_bytes()
    built = KINDS[kind](dtype, session.ONE_STEP)
    built.learner.update(built.episodes, built.credits)
    return live_bytes() - before


def factor_bytes(dtype: str) -> int:
    """Bytes of A and B."""
    return sum(factor.numel() * factor.element_size() for _, factor in adapter_of(dtype, decoder_of(dtype)).factors())


def live_bytes() -> float:
    """Bytes of all tensors that this process holds; what earlier tests left in circles is collected first."""
    gc.collect()
    found: dict[int, int] = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter):
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return float(sum(found.values()))
