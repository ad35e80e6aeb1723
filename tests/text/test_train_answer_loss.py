"""Losses on whole answers: each pair has the weight and the gradient of the formula, however a batch is cut up."""

from collections.abc import Sequence
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

from hone.certify.check import rank_shares
from hone.certify.token_probes import without_shared_prefixes
from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.ragged import RaggedArray, offsets_of
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.credit.grouping import best_and_worst, desirability
from hone.learner.gradient import micro_batches
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.models.packing import pack_rows
from hone.objectives.batchwide import aot_partners, kto_baseline
from hone.objectives.implicit import weighted_terms, wpo_weight
from hone.objectives.preference import aot, dpo, kto
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.text.preference.answer_loss import AnswerLoss, AnswerLossSpec, AnswerView
from hone.text.rows import TokenLayout, TokenRows
from hone.text.tasks.world import supervised_episodes

BETA = 0.7
LAYOUT = TokenLayout(scheme=token_mean)
TOKENIZER = character_tokenizer(["abcdefghij"])


def policy(seed: int = 3) -> TokenPolicy:
    config = ModelConfig(
        vocab_size=TOKENIZER.size, hidden_size=8, intermediate_size=12, layers=1, heads=2, kv_heads=1, head_dim=4
    )
    return TokenPolicy(new_model(config, seed=seed, dtype="float64"), TOKENIZER)


def pairs_of(seed: int, pairs: int) -> Episodes:
    """Pairs in mixed order, to two questions in all; the scores are 0 and 1, and the reference is not the policy."""
    rng = np.random.default_rng(seed)
    questions = [rng.integers(0, TOKENIZER.size, rng.integers(1, 6)).astype(np.int32) for _ in range(2)]
    group = np.repeat(np.arange(pairs) * 3, 2)
    asked = [questions[number % 2] for number in group.tolist()]
    said = [rng.integers(0, TOKENIZER.size, rng.integers(1, 6)).astype(np.int32) for _ in group]
    episodes = supervised_episodes(asked, said)
    mixed = rng.permutation(len(group))
    told = replace(
        episodes,
        group=group,
        score=np.where(np.arange(len(group)) % 2 == rng.integers(0, 2), 1.0, 0.0),
        ref_logp=rng.normal(-2.0, 0.5, episodes.decisions).astype(np.float32),
    )
    return told.take(mixed)


def dpo_of(view: AnswerView) -> LossTerms:
    chosen, rejected = view.pairs()
    return dpo(chosen.log_ratio(), rejected.log_ratio(), beta=BETA)


def wpo_of(view: AnswerView) -> LossTerms:
    chosen, rejected = view.pairs()
    assert chosen.alignment is not None
    assert rejected.alignment is not None
    return weighted_terms(dpo_of(view), wpo_weight(chosen.alignment, rejected.alignment))


def aot_of(view: AnswerView) -> LossTerms:
    chosen, rejected = view.pairs()
    assert chosen.statistic is not None
    return aot(chosen.logp - rejected.logp, chosen.statistic, beta=BETA)


def partners_of(view: AnswerView) -> Tensor:
    chosen, rejected = view.pairs()
    assert chosen.ref_logp is not None
    assert rejected.ref_logp is not None
    found = aot_partners((chosen.logp - rejected.logp).numpy(), (chosen.ref_logp - rejected.ref_logp).numpy())
    result = torch.zeros_like(view.logp)
    result[view.label > 0] = result[view.label < 0] = torch.from_numpy(found)
    return result


SPECS = {
    "dpo": AnswerLossSpec(objective=dpo_of),
    "ld": AnswerLossSpec(objective=dpo_of, excess_weight=0.3),
    "wpo": AnswerLossSpec(objective=wpo_of, needs_alignment=True),
    "aot": AnswerLossSpec(objective=aot_of, statistic=partners_of),
}


def slow_answers(network: TokenPolicy, episodes: Episodes, excess: float = 1.0) -> dict[int, dict[str, tuple]]:
    """Group -> "won" and "lost" -> (log pi, log pi_ref, mean log p - log sum p^2): every answer read alone."""
    seen = episodes.transcript
    sizes = {int(group): int(episodes.lengths[episodes.group == group].min()) for group in episodes.group}
    found: dict[int, dict[str, tuple]] = {}
    for number in range(len(episodes)):
        tokens = seen.tokens[seen.offsets[number] : seen.offsets[number + 1]]
        begin, end = episodes.offsets[number : number + 2]
        at = seen.at[begin:end] - seen.offsets[number]
        hidden = network.decoder.hidden(pack_rows([tokens]))
        logits = torch.log_softmax(network.decoder.logits(hidden)[:, : TOKENIZER.size], -1)[at - 1]
        logp = logits[torch.arange(len(at)), tokens[at].astype(np.int64)]
        weight = torch.where(torch.arange(len(at)) < sizes[int(episodes.group[number])], 1.0, excess).double()
        ref = (weight * torch.from_numpy(episodes.ref_logp[begin:end].astype(np.float64))).sum()
        aligned = (logp - logits.exp().square().sum(-1).log()).mean().detach()
        side = "won" if episodes.score[number] > 0 else "lost"
        found.setdefault(int(episodes.group[number]), {})[side] = ((weight * logp).sum(), ref, aligned)
    return found


def slow_loss(name: str, network: TokenPolicy, episodes: Episodes) -> Tensor:
    """The formulas written out, pair by pair."""
    found = slow_answers(network, episodes, 0.3 if name == "ld" else 1.0)
    margins = [one["won"][0] - one["lost"][0] for one in found.values()]
    anchors = [one["won"][1] - one["lost"][1] for one in found.values()]
    if name == "aot":
        ranks = sorted(range(len(margins)), key=lambda place: float(margins[place].detach()))
        partner = dict(zip(ranks, sorted(anchors), strict=True))
        anchors = [partner[place] for place in range(len(margins))]
    each = [-logsigmoid(BETA * (margin - anchor)) for margin, anchor in zip(margins, anchors, strict=True)]
    if name == "wpo":
        weights = [min(1.0, float((one["won"][2] + one["lost"][2]).exp())) for one in found.values()]
        each = [weight * loss for weight, loss in zip(weights, each, strict=True)]
    return torch.stack(each).mean()


def flat(loss: Tensor, network: TokenPolicy) -> Tensor:
    found = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


def gradient(network: TokenPolicy, asked: AnswerLoss, pieces: Sequence[Any]) -> Tensor:
    losses: list[Tensor] = []
    for piece in pieces:
        if len(piece) == 0:
            continue
        terms = asked.objective(network, piece.tensors())
        assert terms.weight is not None
        losses.append(replace(terms, weight=terms.weight.double()).weighted_sum(terms.weight))
    return flat(torch.stack(losses).sum(), network)


def close(found: Tensor, expected: Tensor) -> None:
    # Weights are float32: each row's gradient is off by 6e-8 of itself, and rows may cancel.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=5e-7)


def finished(asked: AnswerLoss, network: TokenPolicy, rows: TokenRows, reduction: Reduction = ONE_PROCESS) -> TokenRows:
    return asked.prepare(network, rows.weighted(reduction), 0, reduction)


@pytest.mark.parametrize("name", SPECS)
@examples(12)
@given(
    seed=st.integers(0, 10_000),
    pairs=st.integers(1, 5),
    budget=st.integers(1, 60),
    row_tokens=st.sampled_from([0, 12, 1000]),
)
def test_no_split_changes_the_gradient_of_the_formula(
    name: str, seed: int, pairs: int, budget: int, row_tokens: int
) -> None:
    network, episodes = policy(), pairs_of(seed, pairs)
    asked = AnswerLoss(loss=SPECS[name], micro_batch_tokens=budget)
    credits = best_and_worst(episodes, NO_VALUES)
    expected = flat(slow_loss(name, network, episodes), network)
    laid = asked.layout(replace(LAYOUT, row_tokens=row_tokens))(episodes, credits)
    rows = finished(asked, network, laid)
    order = np.random.default_rng(seed).permutation(len(rows))
    for pieces in ([rows], micro_batches(rows.take(order), budget), rank_shares(rows, 2)):
        close(gradient(network, asked, list(pieces)), expected)
    close(gradient(network, asked, list(micro_batches(without_shared_prefixes(rows), budget))), expected)


@pytest.mark.parametrize("name", SPECS)
@examples(8)
@given(seed=st.integers(0, 10_000), pairs=st.integers(2, 6), budget=st.integers(1, 60))
def test_two_ranks_have_the_gradient_of_one_process(name: str, seed: int, pairs: int, budget: int) -> None:
    network, episodes = policy(), pairs_of(seed, pairs)
    asked = AnswerLoss(loss=SPECS[name], micro_batch_tokens=budget)
    rows = asked.layout(LAYOUT)(episodes, best_and_worst(episodes, NO_VALUES))
    parts = on_ranks(2, lambda ranks: finished(asked, network, rank_shares(rows, 2)[ranks.rank], ranks))
    pieces = [piece for part in parts for piece in micro_batches(part, budget)]
    close(gradient(network, asked, pieces), flat(slow_loss(name, network, episodes), network))


# ------------------------------------------------------------------------------------------------- single answers


def kto_of(view: AnswerView) -> LossTerms:
    told = view.where(view.label != 0)
    assert told.statistic is not None
    return kto(told.log_ratio(), told.label > 0, told.statistic, beta=BETA)


def baseline_of(view: AnswerView) -> Tensor:
    unlabelled = torch.where(view.label == 0, view.log_ratio(), torch.nan)
    return torch.from_numpy(kto_baseline(unlabelled.numpy()))


KTO = AnswerLossSpec(objective=kto_of, unit="answer", statistic=baseline_of, needs_unlabelled=True)


def unpaired_of(seed: int, answers: int) -> Episodes:
    """Answers marked good or bad, each in a group with an answer to another question, which has no score."""
    episodes = pairs_of(seed, answers)
    order = np.argsort(episodes.group, kind="stable")
    episodes = episodes.take(order)
    other = np.arange(len(episodes)) % 2 == 1
    marks = np.random.default_rng(seed).integers(0, 2, len(episodes)).astype(np.float64)
    status = np.where(other, ScoreStatus.UNSCORABLE, ScoreStatus.SCORED).astype(np.uint8)
    return replace(episodes, score=np.where(other, np.nan, marks), status=status)


@examples(12)
@given(seed=st.integers(0, 10_000), answers=st.integers(1, 6), budget=st.integers(1, 60))
def test_answers_without_a_label_make_the_statistic_and_nothing_else(seed: int, answers: int, budget: int) -> None:
    network, episodes = policy(), unpaired_of(seed, answers)
    asked = AnswerLoss(loss=KTO, micro_batch_tokens=budget)
    laid = asked.layout(LAYOUT)(episodes, desirability(episodes, NO_VALUES))
    rows = finished(asked, network, laid)
    assert len(rows.episodes) == answers
    alone = slow_answers(network, replace(episodes, group=np.arange(len(episodes))))
    sides = [next(iter(one.values())) for one in alone.values()]
    ratio = [now - ref for now, ref, _ in sides]
    zero = max(0.0, float(torch.stack(ratio[1::2]).mean().detach()))
    each = [
        1.0 - torch.sigmoid(BETA * (s - zero) * (1.0 if mark > 0 else -1.0))
        for s, mark in zip(ratio[::2], episodes.score[::2], strict=True)
    ]
    expected = flat(torch.stack(each).mean(), network)
    for pieces in ([rows], micro_batches(rows, budget), rank_shares(rows, 2)):
        close(gradient(network, asked, list(pieces)), expected)
    parts = on_ranks(2, lambda ranks: finished(asked, network, rank_shares(laid, 2)[ranks.rank], ranks))
    close(gradient(network, asked, parts), expected)


# ------------------------------------------------------------------------------------------------- who is asked


def test_a_frozen_reference_is_asked_for_labelled_answers_only() -> None:
    network, episodes = policy(), replace(pairs_of(0, 3), ref_logp=None)
    more = episodes.take(np.append(np.arange(6), 2))  # one group has a third answer, neither the best nor the worst
    more = replace(more, score=np.append(episodes.score, 0.5), id=np.arange(7, dtype=np.int64))
    asked = AnswerLoss(loss=SPECS["dpo"], micro_batch_tokens=20, reference=policy(seed=9))
    rows = asked.layout(LAYOUT)(more, best_and_worst(more, NO_VALUES))
    assert sorted(rows.episodes.id.tolist()) == list(range(6))
    assert rows.precomputed.ref_logp is not None
    view = asked.answer_view(network, rows.weighted().tensors())
    own = AnswerLoss(loss=SPECS["dpo"], micro_batch_tokens=20)
    reference = own.answer_view(policy(seed=9), rows.weighted().tensors())
    assert view.ref_logp is not None
    torch.testing.assert_close(view.ref_logp, reference.logp.detach(), rtol=0, atol=1e-12)
    assert not view.ref_logp.requires_grad


def test_what_sampling_cut_off_does_not_count() -> None:
    network, episodes = policy(), pairs_of(1, 2)
    count = episodes.decisions
    kept = RaggedArray(values=episodes.chosen.astype(np.int32), offsets=offsets_of(np.ones(count, np.int64)))
    cut = replace(episodes, seen=replace(episodes.transcript, kept=kept))
    asked = AnswerLoss(loss=SPECS["dpo"], micro_batch_tokens=1 << 20)
    views = [
        asked.answer_view(network, asked.layout(LAYOUT)(one, best_and_worst(one, NO_VALUES)).weighted().tensors())
        for one in (episodes, cut)
    ]
    assert torch.equal(views[0].logp, views[1].logp)


def test_metrics_are_told_in_nats_of_the_answers_whatever_the_loss() -> None:
    network, episodes = policy(), pairs_of(2, 4)
    asked = AnswerLoss(loss=SPECS["wpo"], micro_batch_tokens=1 << 20)
    rows = asked.layout(LAYOUT)(episodes, best_and_worst(episodes, NO_VALUES)).weighted()
    metrics = asked.objective(network, rows.tensors()).metrics
    slow = dict(sorted(slow_answers(network, episodes).items()))
    won = [float((one["won"][0] - one["won"][1]).detach()) for one in slow.values()]
    lost = [float((one["lost"][0] - one["lost"][1]).detach()) for one in slow.values()]
    assert metrics["preference/chosen_nats"].tolist() == pytest.approx(won, abs=1e-5)
    assert metrics["preference/rejected_nats"].tolist() == pytest.approx(lost, abs=1e-5)
    assert metrics["preference/margin_nats"].tolist() == pytest.approx(np.subtract(won, lost).tolist(), abs=1e-5)
    assert {"preference/accuracy", "preference/weight"} <= set(metrics)


def test_a_step_without_a_pair_has_no_rows() -> None:
    episodes = replace(pairs_of(0, 2), score=np.zeros(4))
    credits = best_and_worst(episodes, NO_VALUES)
    rows = AnswerLoss(loss=SPECS["dpo"], micro_batch_tokens=9).layout(LAYOUT)(episodes, credits)
    assert len(rows) == 0
    assert len(rows.weighted()) == 0


def test_weights_are_those_of_the_pairs_that_are_left() -> None:
    episodes = pairs_of(4, 4)
    tied = np.isin(episodes.group, [0, 3])
    credits = best_and_worst(replace(episodes, score=np.where(tied, 1.0, episodes.score)), NO_VALUES)
    rows = AnswerLoss(loss=SPECS["dpo"], micro_batch_tokens=9).layout(LAYOUT)(episodes, credits).weighted()
    assert rows.tensors().term_weights["answers"].tolist() == [0.5, 0.5]
    assert credits.metrics == {"preference/pairs": 2.0, "preference/ties": 0.5}
