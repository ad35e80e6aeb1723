"""Scorers: the last token is read, no packing or split changes a number or a gradient, and Bradley-Terry's gradient is
that of a reference written out pair by pair."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.credit.returns import reward_as_advantage
from hone.learner.gradient import micro_batches
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import TokenScorer, new_scalar_head
from hone.models.language.tokenizers import character_tokenizer
from hone.models.packing import pack_rows
from hone.objectives.weights import token_mean
from hone.text.answer_data import answer_episodes, answer_tokens
from hone.text.rows import TokenLayout, TokenRows
from hone.text.scorers.scorer_job import labelled_log
from hone.text.scorers.scorer_loss import PAIR_WEIGHTS, PairwiseLoss, ScorerLoss, outcome_loss, step_loss

VOCAB = 13
TOKENIZER = character_tokenizer(["abcdefg"])


def scorer() -> TokenScorer:
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8
    )  # fmt: skip
    model = new_scalar_head(new_model(config, seed=3, dtype="float64"), seed=4, reads="steps")
    with torch.no_grad():
        assert model.score.bias is not None
        model.score.bias.fill_(0.3)
    return TokenScorer(model, TOKENIZER)


def answers(rng: np.random.Generator, prompts: int, most: int, *, steps: bool = False) -> Episodes:
    """Groups of 2 to `most` answers that share a prompt and often their beginnings, with distinct scores."""
    found, scores, groups = [], [], []
    for group in range(prompts):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 7)).astype(np.int32)
        beginning = rng.integers(0, VOCAB, 3).astype(np.int32)
        count = int(rng.integers(2, most + 1))
        for score in rng.permutation(count):
            said = np.append(beginning[: rng.integers(0, 4)], rng.integers(0, VOCAB, rng.integers(1, 6))).astype(
                np.int32
            )
            ends = np.flatnonzero(rng.random(len(said)) < 0.5).tolist() or [len(said) - 1]
            labels = rng.random(len(ends)).tolist()
            found.append(answer_tokens(prompt, said, step_ends=ends, step_labels=labels) if steps else
                         answer_tokens(prompt, said))  # fmt: skip
            scores.append(score / max(count - 1, 1))
            groups.append(group)
    return answer_episodes(found, scores=scores, groups=groups, steps=steps)


def rows_of(episodes: Episodes, *, pairs: bool, share: bool = True, row_tokens: int = 512) -> TokenRows:
    layout = TokenLayout(
        scheme=token_mean,
        unit="group" if pairs else "sample",
        term_weights=PAIR_WEIGHTS if pairs else {},
        share_prefixes=share,
        row_tokens=row_tokens,
        after=True,
    )
    return layout(episodes, reward_as_advantage(episodes, NO_VALUES)).weighted()


def gradient(network: TokenScorer, loss: ScorerLoss, pieces: list[TokenRows]) -> torch.Tensor:
    network.zero_grad()
    for piece in pieces:
        batch = piece.tensors()
        loss(network, batch).weighted_sum(batch.weight.double()).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def reference_gradient(network: TokenScorer, episodes: Episodes, *, margin: float, centring: float) -> torch.Tensor:
    """Bradley-Terry pair by pair, each answer in a pass of its own: the mean over groups of the mean over pairs."""
    network.zero_grad()
    seen, numbers = episodes.transcript, np.unique(episodes.group)
    rewards = []
    for begin, end in zip(seen.offsets[:-1], seen.offsets[1:], strict=True):
        packed = pack_rows([seen.tokens[begin:end]])
        hidden = network.decoder.hidden(packed)[-1]
        bias = network.model.score.bias
        rewards.append(hidden @ network.model.score.weight[0] + (0.0 if bias is None else bias[0]))
    score = episodes.score.astype(np.float32)
    total = torch.zeros((), dtype=torch.float64)
    for number in numbers:
        members = np.flatnonzero(episodes.group == number)
        pairs = [(w, l) for w in members for l in members if score[w] > score[l]]  # noqa: E741
        for winner, loser in pairs:
            gap = margin * float(score[winner] - score[loser])
            odds = rewards[winner] - rewards[loser] - gap
            one = -torch.log(torch.sigmoid(odds)) + centring * (rewards[winner] + rewards[loser]) ** 2
            total = total + one / len(pairs) / len(numbers)
    total.backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


@examples(12)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 80),
    prompts=st.integers(1, 4),
    most=st.integers(2, 4),
    margin=st.sampled_from([0.0, 1.5]),
    centring=st.sampled_from([0.0, 0.01]),
)
def test_bradley_terry_has_the_gradient_of_the_reference(
    seed: int, budget: int, prompts: int, most: int, margin: float, centring: float
) -> None:
    episodes, network = answers(np.random.default_rng(seed), prompts, most), scorer()
    loss = PairwiseLoss(margin=margin, centring=centring)
    expected = reference_gradient(network, episodes, margin=margin, centring=centring)
    ends = labelled_log(episodes, "preference")
    for share, row_tokens in ((True, 512), (True, 12), (False, 512)):
        rows = rows_of(ends, pairs=True, share=share, row_tokens=row_tokens)
        for pieces in ([rows], list(micro_batches(rows, budget))):
            torch.testing.assert_close(gradient(network, loss, pieces), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("loss", "steps"), [(outcome_loss, False), (step_loss, True)])
@examples(8)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 80))
def test_no_split_packing_or_sharing_changes_the_gradient_of_a_verifier(
    loss: ScorerLoss, steps: bool, seed: int, budget: int
) -> None:
    episodes, network = answers(np.random.default_rng(seed), 3, 3, steps=steps), scorer()
    marked = labelled_log(episodes, "stepwise" if steps else "outcome")
    alone = rows_of(marked, pairs=False, share=False)
    network.zero_grad()
    seen, total = marked.transcript, torch.zeros((), dtype=torch.float64)
    for place, (begin, end) in enumerate(zip(seen.offsets[:-1], seen.offsets[1:], strict=True)):
        mine = slice(marked.offsets[place], marked.offsets[place + 1])
        logits = network.scores(pack_rows([seen.tokens[begin:end]]), torch.from_numpy(seen.at[mine] - begin))
        label = torch.from_numpy(marked.reward[mine].astype(np.float64))
        chance = torch.sigmoid(logits)
        total = total - (label * chance.log() + (1 - label) * (1 - chance).log()).sum() / marked.decisions
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    shared = rows_of(marked, pairs=False)
    for pieces in ([alone], [shared], list(micro_batches(shared, budget)), list(micro_batches(alone, budget))):
        torch.testing.assert_close(gradient(network, loss, pieces), expected, rtol=1e-6, atol=1e-7)


def test_a_layout_after_the_token_sees_the_last_token() -> None:
    """Another last token is another score; a layout before it would not notice."""
    prompt, network = np.array([1, 2], np.int32), scorer()
    found = []
    for last in (3, 4):
        log = answer_episodes([answer_tokens(prompt, np.array([5, last], np.int32))], scores=[1.0], groups=[0])
        ends = labelled_log(log, "outcome")
        by_place = {}
        for after in (True, False):
            layout = TokenLayout(scheme=token_mean, after=after)
            batch = layout(ends, reward_as_advantage(ends, NO_VALUES)).tensors()
            assert len(batch.packed.tokens) == (4 if after else 3)
            by_place[after] = network.scores(batch.packed, batch.at).item()
        found.append(by_place)
    assert found[0][True] != found[1][True]
    assert found[0][False] == found[1][False]


def test_ties_and_missing_labels_make_no_pairs() -> None:
    log = answer_episodes(
        [answer_tokens(np.array([1], np.int32), np.array([place], np.int32)) for place in range(4)],
        scores=[1.0, 1.0, 0.0, 2.0],
        groups=[0, 0, 1, 1],
    )
    batch = rows_of(labelled_log(log, "preference"), pairs=True).tensors()
    terms = PairwiseLoss()(scorer(), batch)
    assert terms.loss[0] == 0
    assert terms.loss[1] > 0
    assert terms.metrics["reward_model/accuracy"].shape == (1,)
