"""Groups that stay together, and loss terms with weights of their own: no split of a batch changes their gradient."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from ranks_in_threads import on_ranks
from torch import Tensor
from torch.nn.functional import logsigmoid

from hone.certify.check import GradientProbe, rank_shares, run_gradient_checks
from hone.certify.token_probes import with_token_checks, without_shared_prefixes
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.ragged import ranges
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner, OptimizerPhase, micro_batches, split_by_rows
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.weights import TermWeights, sequence_mean, sequence_sum, token_mean
from hone.text.rows import TokenBatch, TokenLayout, TokenRows
from hone.text.tasks.world import supervised_episodes

VOCAB = 11
WEIGHTS = {
    "pair": TermWeights(scheme=sequence_mean, per="group"),
    "length": TermWeights(scheme=sequence_sum, per="sequence"),
    "nll": TermWeights(scheme=sequence_mean, per="decision"),
}
GROUPS = TokenLayout(scheme=token_mean, unit="group", term_weights=WEIGHTS)
Objective = Callable[[Decoder, TokenBatch], LossTerms]


def model() -> Decoder:
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=12, layers=1, heads=2, kv_heads=1, head_dim=4
    )
    return new_model(config, seed=3, dtype="float64")


def batch_of(seed: int, groups: int) -> tuple[Episodes, Credits]:
    """Groups of one to three answers, to two questions in all, in mixed order; advantages are 1, -1 or 0."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(rng.permutation(groups) * 3, rng.integers(1, 4, groups)))
    questions = [rng.integers(0, VOCAB, rng.integers(1, 6)).astype(np.int32) for _ in range(2)]
    asked = [questions[number] for number in rng.integers(0, 2, len(group)).tolist()]
    said = [rng.integers(0, VOCAB, rng.integers(1, 5)).astype(np.int32) for _ in group]
    episodes = replace(supervised_episodes(asked, said), group=group)
    advantage = rng.integers(-1, 2, len(group)).astype(np.float32)
    return episodes, Credits(advantage=advantage[episodes.owner])


def logp_of(network: Decoder, batch: TokenBatch) -> Tensor:
    return network.token_logprobs(network.hidden(batch.packed)[batch.at], batch.chosen).logp


def pairwise(network: Decoder, batch: TokenBatch) -> LossTerms:
    """-logsigmoid of each group's log-probabilities, the preferred answers' less the others'; by 1 / (groups x
    decisions of the group)."""
    assert batch.group is not None
    margin = batch.advantage.double() * logp_of(network, batch)
    weight = batch.term_weights["pair"].double()
    margin = torch.zeros_like(weight).index_add(0, batch.group[batch.sequence], margin)
    return LossTerms(loss=-logsigmoid(margin), weight=weight)


def two_schemes(network: Decoder, batch: TokenBatch) -> LossTerms:
    """-A log pi by the mean over tokens, the square of an answer's log pi by the mean over answers."""
    logp = logp_of(network, batch)
    weight = batch.term_weights["length"].double()
    squares = torch.zeros_like(weight).index_add(0, batch.sequence, logp).square()
    policy = LossTerms(loss=-batch.advantage.double() * logp)
    return add_terms(policy, LossTerms(loss=squares, weight=weight), weight=0.1)


def three_schemes(network: Decoder, batch: TokenBatch) -> LossTerms:
    logp = logp_of(network, batch)
    nll = LossTerms(loss=-logp, weight=batch.term_weights["nll"].double())
    return add_terms(add_terms(pairwise(network, batch), nll, weight=0.5), two_schemes(network, batch), weight=0.3)


def gradient(network: Decoder, objective: Objective, pieces: Sequence[Any]) -> Tensor:
    parameters = list(network.parameters())
    batches = [piece.tensors() for piece in pieces]
    losses = [objective(network, batch).weighted_sum(batch.weight.double()) for batch in batches]
    found = torch.autograd.grad(torch.stack(losses).sum(), parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


def slow_gradient(network: Decoder, name: str, episodes: Episodes, credits: Credits) -> Tensor:
    """Every answer read alone, and the sums of the formulas written out."""
    seen, sign = episodes.transcript, credits.advantage[episodes.offsets[:-1]]
    each: list[Tensor] = []
    for number in range(len(episodes)):
        tokens = seen.tokens[seen.offsets[number] : seen.offsets[number + 1]]
        where = seen.at[episodes.offsets[number] : episodes.offsets[number + 1]] - seen.offsets[number]
        logits = network.logits(network.hidden(pack_rows([tokens])))
        each.append(torch.log_softmax(logits, -1)[where - 1, tokens[where].astype(np.int64)])
    members = [np.flatnonzero(episodes.group == number).tolist() for number in np.unique(episodes.group)]
    pair = torch.zeros((), dtype=torch.float64)
    for group in members:
        margin = torch.stack([float(sign[one]) * each[one].sum() for one in group]).sum()
        pair = pair - logsigmoid(margin) / (len(members) * sum(len(each[one]) for one in group))
    tokens = sum(-float(a) * logp.sum() for a, logp in zip(sign, each, strict=True)) / episodes.decisions
    squares = sum(logp.sum() ** 2 for logp in each) / len(each)
    nll = sum(-logp.mean() for logp in each) / len(each)
    two = tokens + 0.1 * squares
    loss = {"pairwise": pair, "two_schemes": two, "three_schemes": pair + 0.5 * nll + 0.3 * two}[name]
    assert isinstance(loss, Tensor)
    found = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)  # weights are float32


def of_rank(episodes: Episodes, credits: Credits, mine: np.ndarray) -> tuple[Episodes, Credits]:
    where = ranges(episodes.offsets[:-1][mine], episodes.lengths[mine])
    return episodes.take(mine), Credits(advantage=credits.advantage[where])


@pytest.mark.parametrize("objective", [pairwise, two_schemes, three_schemes])
@examples(12)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 5),
    budget=st.integers(1, 60),
    row_tokens=st.sampled_from([0, 12, 1000]),
)
def test_no_split_changes_the_gradient(
    objective: Objective, seed: int, groups: int, budget: int, row_tokens: int
) -> None:
    network, (episodes, credits) = model(), batch_of(seed, groups)
    expected = slow_gradient(network, objective.__name__, episodes, credits)
    single = replace(GROUPS, unit="sample", term_weights={"length": WEIGHTS["length"]})
    layouts = [GROUPS, single] if objective is two_schemes else [GROUPS]
    for layout in layouts:
        rows = replace(layout, row_tokens=row_tokens)(episodes, credits).weighted()
        order = np.random.default_rng(seed).permutation(len(rows))
        for pieces in ([rows], [rows.take(order)], micro_batches(rows.take(order), budget), rank_shares(rows, 2)):
            close(gradient(network, objective, [piece for piece in pieces if len(piece)]), expected)
        close(gradient(network, objective, list(micro_batches(without_shared_prefixes(rows), budget))), expected)


@pytest.mark.parametrize("objective", [pairwise, two_schemes, three_schemes])
@examples(10)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 6), budget=st.integers(1, 60))
def test_two_ranks_have_the_gradient_of_one_process(objective: Objective, seed: int, groups: int, budget: int) -> None:
    network, (episodes, credits) = model(), batch_of(seed, groups)
    mine = [np.flatnonzero(np.isin(episodes.group, np.unique(episodes.group)[rank::2])) for rank in range(2)]
    parts = on_ranks(2, lambda ranks: GROUPS(*of_rank(episodes, credits, mine[ranks.rank])).weighted(ranks))
    pieces = [piece for part in parts for piece in micro_batches(part, budget)]
    close(gradient(network, objective, pieces), slow_gradient(network, objective.__name__, episodes, credits))


@examples(12)
@given(seed=st.integers(0, 10_000), groups=st.integers(1, 6), minibatches=st.integers(1, 4), budget=st.integers(1, 60))
def test_a_minibatch_is_the_same_with_and_without_shared_prefixes(
    seed: int, groups: int, minibatches: int, budget: int
) -> None:
    network, (episodes, credits) = model(), batch_of(seed, groups)
    order = np.random.default_rng(seed).permutation(groups)
    shared, alone = (
        list(split_by_rows(replace(GROUPS, share_prefixes=share)(episodes, credits), order, min(minibatches, groups)))
        for share in (True, False)
    )
    for one, other in zip(shared, alone, strict=True):
        found = gradient(network, three_schemes, list(micro_batches(one, budget)))
        close(found, gradient(network, three_schemes, [other]))


@examples(60)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 8),
    minibatches=st.integers(1, 5),
    budget=st.integers(1, 60),
    row_tokens=st.integers(0, 40),
    skip=st.booleans(),
)
def test_a_group_is_never_split(
    seed: int, groups: int, minibatches: int, budget: int, row_tokens: int, skip: bool
) -> None:
    episodes, credits = batch_of(seed, groups)
    layout = replace(GROUPS, row_tokens=row_tokens, skip_zero_advantage=skip)
    rows = layout(episodes, credits)
    assert len(rows) == groups
    order = np.random.default_rng(seed).permutation(groups)
    met: list[int] = []
    for minibatch in split_by_rows(rows, order, min(minibatches, groups)):
        for piece in micro_batches(minibatch, budget):
            assert isinstance(piece, TokenRows)
            batch, here = piece.tensors(), piece.episodes.group
            assert batch.group is not None
            assert int(piece.sizes().sum()) == len(batch.packed.tokens)
            assert len(piece) == 1 or len(batch.packed.tokens) <= budget
            names = np.unique(here)
            met += names.tolist()
            for name in names:
                assert (here == name).sum() == (episodes.group == name).sum()
                assert len(set(batch.group.numpy()[here == name])) == 1
            assert sorted(set(batch.group.tolist())) == list(range(len(names)))
    size = np.bincount(episodes.owner, weights=np.abs(credits.advantage))
    assert sorted(met) == np.unique(episodes.group[size > 0] if skip else episodes.group).tolist()


@examples(15)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 60), skip=st.booleans())
def test_answers_to_a_question_stand_where_the_decisions_do(seed: int, budget: int, skip: bool) -> None:
    network, (episodes, credits) = model(), batch_of(seed, 4)
    rows = replace(GROUPS, skip_zero_advantage=skip)(episodes, credits)
    (found,) = rows.evaluate(lambda batch: (logp_of(network, batch),), budget)
    expected = logp_of(network, rows.tensors()).detach().numpy()
    np.testing.assert_allclose(found, np.where(found == 0, 0, expected), rtol=0, atol=1e-12)
    assert np.count_nonzero(found) > 0
    if not skip:
        assert (found != 0).all()


def test_three_answers_by_hand() -> None:
    """Two answers of group 4 with two decisions and one, one answer of group 9 with one: 4 decisions, 2 groups."""
    question = np.array([1, 2], np.int32)
    said = [np.array([3, 4], np.int32), np.array([5], np.int32), np.array([6], np.int32)]
    episodes = replace(supervised_episodes([question] * 3, said), group=np.array([4, 9, 4]))
    layout = replace(GROUPS, term_weights=WEIGHTS | {"group": TermWeights(scheme=sequence_sum, per="group")})
    batch = layout(episodes, Credits(advantage=episodes.reward)).weighted().tensors()
    assert batch.chosen.tolist() == [3, 4, 6, 5], "a group stands together"
    assert batch.group is not None
    assert batch.group.tolist() == [0, 0, 1]
    assert batch.term_weights["nll"].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
    assert batch.term_weights["pair"].tolist() == pytest.approx([1 / (2 * 3), 1 / 2])
    per_decision = LossTerms(loss=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    per_answer = LossTerms(loss=torch.tensor([10.0, 20.0, 30.0]), weight=batch.term_weights["length"])
    per_group = LossTerms(loss=torch.tensor([100.0, 300.0]), weight=batch.term_weights["group"])
    terms = add_terms(add_terms(per_decision, per_answer, weight=0.5), per_group)
    assert float(terms.weighted_sum(batch.weight)) == pytest.approx(10 / 4 + 0.5 * 60 / 3 + 400 / 2)
    assert float(per_group.weighted_sum(batch.weight)) == pytest.approx(200.0)


@pytest.mark.parametrize("budget", [1, 17, 1 << 62])
def test_the_gradient_learner_sums_all_terms(budget: int) -> None:
    network, (episodes, credits) = model(), batch_of(3, 5)
    expected = slow_gradient(network, "three_schemes", episodes, credits)
    parameters = FlatParameters(network.parameters())
    learner = GradientLearner(
        policy=network,
        layout=GROUPS,
        phases=[OptimizerPhase("pairs", three_schemes, parameters, Adam(parameters))],
        seed=0,
        learning_rate=lambda _: 0.1,
        micro_batch_tokens=budget,
    )
    learner.update(episodes, credits)
    close(parameters.gradient, expected)


def test_a_certificate_splits_between_groups() -> None:
    network, (episodes, credits) = model(), batch_of(3, 5)
    laid = GROUPS(episodes, credits)
    probe = GradientProbe(
        name="pairs",
        policy=network,
        objective=three_schemes,
        parameters=list(network.parameters()),
        rows=laid.weighted(),
        laid=laid,
        finish=lambda rows, reduction: rows.weighted(reduction),
        batch="pairs",
        large_count=len(laid),
    )
    checks = run_gradient_checks(with_token_checks(probe))
    assert {"prefixes not shared", "one group at a time", "two shards, summed"} <= {check.name for check in checks}
    assert all(check.passed for check in checks)


def test_weights_per_group_need_whole_groups() -> None:
    episodes, credits = batch_of(0, 3)
    with pytest.raises(AssertionError, match="weights per group need"):
        replace(GROUPS, unit="sample")(episodes, credits).weighted()
