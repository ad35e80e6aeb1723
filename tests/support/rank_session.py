"""One rank of a test session: `python rank_session.py RANK RANKS PORT CASE...`.

A case is a function of this module that takes the group and returns arrays by name; those of rank 0 are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh

from hone.certify.check import synthetic_credits
from hone.certify.token_probes import AnswerShape, synthetic_token_episodes
from hone.core.clock import SystemClock
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.state import State
from hone.learner.config import LearnerConfig
from hone.learner.gradient import GradientLearner
from hone.learner.share import building_for
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig, ExpertTrainingConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.parallel.group import RankGroup, RankMeeting, joined, open_meeting
from hone.parallel.ranked_job import RankWork
from hone.parallel.sharded_build import ShardedBuild
from hone.process.child import ChildProcess, LineParser
from hone.process.parent import connect_to_parent
from hone.recipes.text.sft import token_nll
from hone.text.learners import token_learner
from hone.text.rows import TokenBatch, TokenLayout

Results = dict[str, NDArray[np.generic]]
PATIENCE_S = 300.0
CONFIG = ModelConfig(
    family="qwen3", vocab_size=19, hidden_size=18, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate_size=20,
    tie_embeddings=False,
)  # fmt: skip
LEARNER = LearnerConfig(lr=1e-2, micro_batch_tokens=40, minibatches=2, epochs=2, weight_decay=0.1, max_grad_norm=0.5)


EXPERTS = ExpertsConfig(count=5, per_token=2, width=6)


def expert_policy(balance: Literal["loss", "bias"]) -> TokenPolicy:
    """A mixture of five experts in float64."""
    decoder = new_model(replace(CONFIG, family="qwen3_moe", experts=EXPERTS), seed=3, dtype="float64")
    decoder.set_compute_dtype("float64")
    if balance == "bias":
        decoder.add_selection_bias()
    training = ExpertTrainingConfig.model_validate({"balance": {balance: 0.02}})
    return TokenPolicy(decoder, character_tokenizer("0123456789+="), expert_training=training)


def tiny_policy(dtype: str) -> TokenPolicy:
    """A policy of two layers whose first dimensions do not divide evenly; equal on all ranks."""
    decoder = new_model(CONFIG, seed=3, dtype=dtype)
    decoder.set_compute_dtype(dtype)
    return TokenPolicy(decoder, character_tokenizer("0123456789+="))


def batch(policy: TokenPolicy) -> tuple[Episodes, Credits]:
    """Answers of different lengths in groups, with advantages."""
    episodes = synthetic_token_episodes(policy, AnswerShape(group_size=3, max_tokens=7), seed=1)
    return episodes, synthetic_credits(episodes, seed=1)


def make_learner(policy: TokenPolicy, config: LearnerConfig = LEARNER) -> GradientLearner[TokenPolicy, object]:
    """A learner of weighted log-likelihoods in several micro-batches."""
    return token_learner(
        config, policy, layout=TokenLayout(scheme=token_mean), objective=token_nll, seed=5, steps=3
    )  # fmt: skip


def ranked(
    group: RankGroup, dtype: str, config: LearnerConfig = LEARNER, policy: TokenPolicy | None = None
) -> tuple[TokenPolicy, RankWork]:
    """The whole policy and the work of this rank, with rank 0's weights."""
    policy, build = policy or tiny_policy(dtype), ShardedBuild(group)
    with building_for(build):
        learner = make_learner(policy, config)
    work = RankWork(learner=learner, group=group, twins=build.twins)
    work.take_weights()
    return policy, work


def weights(policy: TokenPolicy) -> NDArray[np.generic]:
    """All weights `[P]`."""
    return torch.cat([one.detach().flatten() for one in policy.parameters()]).double().numpy()


def set_weights(policy: TokenPolicy, values: NDArray[np.generic]) -> None:
    """Inverse of `weights`."""
    parameters = list(policy.parameters())
    for one, part in zip(parameters, torch.from_numpy(values).split([p.numel() for p in parameters]), strict=True):
        one.data.copy_(part.view_as(one))


def set_moments(state: State, name: str, values: NDArray[np.generic]) -> float:
    """Put moments `[P]` into a state; returns how far they were from its own, as a share of the largest."""
    before, start = flat_moments(state, name), 0
    moments = state["phases"]["policy"][name]
    for key, value in moments.items():
        moments[key] = values[start : start + value.size].reshape(value.shape)
        start += value.size
    return float(np.abs(before - values).max() / np.abs(before).max())


def flat_moments(state: State, name: str = "exp_avg_sq") -> NDArray[np.generic]:
    """Moments `[P]` of a learner's state."""
    phases = state["phases"]
    assert isinstance(phases, dict)
    policy = phases["policy"]
    assert isinstance(policy, dict)
    moments = policy[name]
    assert isinstance(moments, dict)
    return np.concatenate([value.ravel() for value in moments.values() if isinstance(value, np.ndarray)])


ONE_STEP = LEARNER.model_copy(update={"minibatches": 1, "epochs": 1, "max_grad_norm": 0.0})


def first_gradient(group: RankGroup, dtype: str) -> Results:
    """Gradient of the first step, as Adam's first moment tells it."""
    policy, work = ranked(group, dtype, ONE_STEP)
    work.update(*batch(policy))
    return {"gradient": flat_moments(work.state(), "exp_avg"), "weights": weights(policy)}


def gradient32(group: RankGroup) -> Results:
    """`first_gradient` in float32."""
    return first_gradient(group, "float32")


def gradient64(group: RankGroup) -> Results:
    """`first_gradient` in float64."""
    return first_gradient(group, "float64")


def training(group: RankGroup, dtype: str) -> Results:
    """Weights, moments and a metric after three updates of two epochs of two minibatches."""
    policy, work = ranked(group, dtype)
    episodes, credits = batch(policy)
    metrics = [work.update(episodes, credits) for _ in range(3)]
    figures = np.array([[row["policy/grad_norm"], row["policy/loss"], row["learner/tokens"]] for row in metrics])
    return {"weights": weights(policy), "squares": flat_moments(work.state()), "figures": figures}


def biases(policy: TokenPolicy) -> NDArray[np.generic]:
    """Biases of the experts of all layers."""
    found = [one.double().numpy() for name, one in policy.named_buffers() if name.endswith("selection_bias")]
    return np.concatenate([np.zeros(0), *found])


def expert_training(update: Callable[..., Metrics], policy: TokenPolicy) -> Results:
    """Weights, biases and loads of three updates."""
    episodes, credits = batch(policy)
    rows = [update(episodes, credits) for _ in range(3)]
    loads = np.array([[row["moe/load_max"], row["moe/dead"], row["policy/grad_norm"]] for row in rows])
    return {"weights": weights(policy), "biases": biases(policy), "loads": loads}


def experts_loss(group: RankGroup) -> Results:
    """Training of experts that a loss balances."""
    policy, work = ranked(group, "float64", policy=expert_policy("loss"))
    return expert_training(work.update, policy)


def experts_bias(group: RankGroup) -> Results:
    """Training of experts that biases balance."""
    policy, work = ranked(group, "float64", policy=expert_policy("bias"))
    return expert_training(work.update, policy)


def train32(group: RankGroup) -> Results:
    """`training` in float32."""
    return training(group, "float32")


def train64(group: RankGroup) -> Results:
    """`training` in float64."""
    return training(group, "float64")


def resume(group: RankGroup) -> Results:
    """One update, then a second one by learners that took over the first one's weights and state."""
    policy, work = ranked(group, "float32")
    episodes, credits = batch(policy)
    work.update(episodes, credits)
    own = work.state()
    state = group.send(own if group.is_driver else None)
    first = weights(policy)
    other, again = ranked(group, "float32")
    other.load_state_dict(policy.state_dict())
    again.take_weights()
    again.restore(state)
    work.update(episodes, credits)
    again.update(episodes, credits)
    moments = {name: flat_moments(state, name) for name in ("exp_avg", "exp_avg_sq")} if group.is_driver else {}
    return {"first": first, "on": weights(policy), "resumed": weights(other), **moments}


def fewer_rows(group: RankGroup) -> Results:
    """An update on a single row, which one rank has and the others fill up."""
    policy, work = ranked(group, "float64", LEARNER.model_copy(update={"minibatches": 1}))
    episodes, credits = batch(policy)
    one = episodes.take(np.array([0]))
    work.update(one, Credits(advantage=credits.advantage[: one.decisions]))
    return {"weights": weights(policy)}


def whole_networks(group: RankGroup) -> Results:
    """`train64` of ranks that hold whole networks and sum their gradients."""
    policy = tiny_policy("float64")
    work = RankWork(learner=make_learner(policy), group=group)
    work.take_weights()
    episodes, credits = batch(policy)
    for _ in range(3):
        work.update(episodes, credits)
    return {"weights": weights(policy), "squares": flat_moments(work.state())}


def virtual_train32(group: RankGroup) -> Results:
    """`train32` of four virtual ranks."""
    return training(RankGroup(replace(group.meeting, virtual=4), group.mesh), "float32")


def not_finite_on_one(group: RankGroup) -> Results:
    """The loss of rank 1 is not a number: what every rank raises, and the weights."""
    policy, work = ranked(group, "float32")
    assert isinstance(work.learner, GradientLearner)
    phase, before = work.learner.phases[0], weights(policy)
    objective = phase.objective

    def spoilt(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        terms = objective(policy, batch)
        return replace(terms, loss=terms.loss * (float("nan") if group.rank == 1 else 1.0))

    phase.objective = spoilt
    try:
        work.update(*batch(policy))
    except DivergedError:
        work.twins[0].gather(group)
        return {"before": before, "after": weights(policy)}
    raise AssertionError("a step was taken")


def in_pairs(group: RankGroup) -> RankGroup:
    """The same ranks, of which two neighbours hold the layers together."""
    sides = (group.meeting.ranks // 2, 2)
    return RankGroup(
        replace(group.meeting, tensor=2), init_device_mesh("cpu", sides, mesh_dim_names=("data", "tensor"))
    )


def pairs_gradient32(group: RankGroup) -> Results:
    """`gradient32` of pairs."""
    return first_gradient(in_pairs(group), "float32")


def pairs_gradient64(group: RankGroup) -> Results:
    """`gradient64` of pairs."""
    return first_gradient(in_pairs(group), "float64")


def pairs_train64(group: RankGroup) -> Results:
    """`train64` of pairs."""
    return training(in_pairs(group), "float64")


def pairs_resume(group: RankGroup) -> Results:
    """`resume` of pairs."""
    return resume(in_pairs(group))


def networks(group: RankGroup, dtype: str, *names: str) -> Results:
    """Gradients, answers and bytes of networks beside a dense policy; `names`: of these alone."""
    from tests.support import rank_networks

    return {
        f"{kind} {name}": value
        for kind in names or rank_networks.KINDS
        for name, value in rank_networks.on_ranks(group, kind, dtype).items()
    }


def networks32(group: RankGroup) -> Results:
    """`networks` in float32."""
    return networks(group, "float32")


def networks64(group: RankGroup) -> Results:
    """`networks` in float64, but one."""
    return networks(group, "float64", "policy", "critic", "scorer", "adapter", "reference")


def natural64(group: RankGroup) -> Results:
    """Weights after a step along the natural gradient, in float64."""
    from tests.support import rank_networks

    build = ShardedBuild(group)
    with building_for(build):
        policy, learner = rank_networks.trust_region("float64")
    work = RankWork(learner=learner, group=group, twins=build.twins)
    work.take_weights()
    told = work.update(*batch(policy))
    return {"weights": weights(policy), "figures": np.array([told["natural/accepted"], told["natural/kl_nats"]])}


def pairs_natural64(group: RankGroup) -> Results:
    """`natural64` of pairs."""
    return natural64(in_pairs(group))


def pairs_networks64(group: RankGroup) -> Results:
    """`networks64` of pairs."""
    return networks(in_pairs(group), "float64", "policy", "critic", "adapted_scorer", "reference")


CASES: dict[str, Callable[[RankGroup], Results]] = {
    case.__name__: case
    for case in (
        gradient32,
        gradient64,
        train32,
        train64,
        resume,
        fewer_rows,
        whole_networks,
        virtual_train32,
        not_finite_on_one,
        pairs_gradient32,
        pairs_gradient64,
        pairs_train64,
        pairs_resume,
        experts_loss,
        experts_bias,
        networks32,
        networks64,
        pairs_networks64,
        natural64,
        pairs_natural64,
    )
}


def run_cases(names: Sequence[str], *, ranks: int) -> dict[str, Results]:
    """Results of the cases, run by `ranks` processes that live for all of them."""
    meeting = RankMeeting(rank=0, ranks=ranks, virtual=0, patience_s=PATIENCE_S, device="cpu")
    place, port = open_meeting(meeting)
    children: list[ChildProcess[bytes]] = []
    try:
        for rank in range(1, ranks):
            arguments = (*map(str, (rank, ranks, port)), *names)
            child = ChildProcess(__spec__.name, LineParser(), clock=SystemClock(), arguments=arguments)
            child.start()
            children.append(child)
        with joined(meeting, place) as group:
            found = {name: CASES[name](group) for name in names}
        for child in children:
            child.receive(PATIENCE_S)
    finally:
        for child in children:
            child.kill()
    return found


def main() -> None:
    """Run one rank as a child process."""
    channel = connect_to_parent()
    rank, ranks, port = map(int, channel.arguments[:3])
    torch.set_num_threads(1)
    meeting = RankMeeting(
        rank=rank, ranks=ranks, virtual=0, port=port, patience_s=PATIENCE_S, device="cpu"
    )  # fmt: skip
    with joined(meeting) as group:
        for name in channel.arguments[3:]:
            CASES[name](group)
    channel.reply(b"done\n")


if __name__ == "__main__":
    main()
