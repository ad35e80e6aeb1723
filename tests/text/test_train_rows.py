"""Rows of tokens: whatever is shared, split or reordered, every decision's log-probability and gradient is the same."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.learner.gradient import split_by_rows
from hone.learner.share import split_by_token_budget
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows
from hone.objectives.weights import (
    PromptScheme,
    WeightingScheme,
    constant_length,
    prompt_sequence_mean,
    sequence_mean,
    token_mean,
)
from hone.text.rows import MIN_SHARED_PART, TokenBatch, TokenLayout, TokenRows, padded_size
from hone.text.tasks.world import supervised_episodes

VOCAB = 13


def model() -> Decoder:
    config = ModelConfig(
        family="qwen3",
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=8,
    )
    return new_model(config, seed=3, dtype="float64")


def groups_of(rng: np.random.Generator, prompts: int, samples: int) -> Episodes:
    asked: list[np.ndarray] = []
    said: list[np.ndarray] = []
    for _ in range(prompts):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 7)).astype(np.int32)
        for _ in range(samples):
            asked.append(prompt)
            said.append(rng.integers(0, VOCAB, rng.integers(1, 6)).astype(np.int32))
    return supervised_episodes(asked, said)


def loss_of(network: Decoder, batch: TokenBatch) -> torch.Tensor:
    now = network.token_logprobs(network.hidden(batch.packed)[batch.at], batch.chosen)
    return -(batch.weight.double() * batch.advantage.double() * now.logp).sum()


def gradient(network: Decoder, pieces: list[TokenRows]) -> torch.Tensor:
    network.zero_grad()
    for piece in pieces:
        loss_of(network, piece.tensors()).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def advantages(rng: np.random.Generator, episodes: Episodes) -> Credits:
    return Credits(advantage=np.repeat(rng.normal(size=len(episodes)), episodes.lengths).astype(np.float32))


@pytest.mark.parametrize("scheme", [token_mean, sequence_mean, lambda lengths: constant_length(lengths, length=9)])
@examples(15)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 60), prompts=st.integers(1, 4), samples=st.integers(1, 4))
def test_no_split_packing_or_sharing_changes_a_gradient(
    scheme: WeightingScheme, seed: int, budget: int, prompts: int, samples: int
) -> None:
    rng = np.random.default_rng(seed)
    network = model()
    episodes = groups_of(rng, prompts, samples)
    credits = advantages(rng, episodes)
    alone = TokenLayout(scheme=scheme, share_prefixes=False)(episodes, credits).weighted()
    reference = gradient(network, [alone.take(np.array([row])) for row in range(len(alone))])
    for row_tokens in (0, 12, 1000):
        shared = TokenLayout(scheme=scheme, row_tokens=row_tokens)(episodes, credits).weighted()
        pieces = [shared.take(rows) for rows in split_by_token_budget(shared.sizes(), budget)]
        torch.testing.assert_close(gradient(network, pieces), reference, rtol=1e-6, atol=1e-7)
        order = rng.permutation(len(shared))
        torch.testing.assert_close(gradient(network, [shared.take(order)]), reference, rtol=1e-6, atol=1e-7)


@examples(20)
@given(seed=st.integers(0, 10_000))
def test_log_probabilities_are_those_of_each_sequence_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = model()
    episodes = groups_of(rng, 3, 3)
    rows = TokenLayout(scheme=token_mean)(episodes, advantages(rng, episodes))
    batch = rows.tensors()
    packed = network.token_logprobs(network.hidden(batch.packed)[batch.at], batch.chosen).logp.detach().numpy()
    seen = episodes.transcript
    for number in range(len(episodes)):
        tokens = seen.tokens[seen.offsets[number] : seen.offsets[number + 1]]
        logits = network.logits(network.hidden(pack_rows([tokens]))).detach()
        logp = torch.log_softmax(logits, -1).numpy()
        where = seen.at[episodes.offsets[number] : episodes.offsets[number + 1]] - seen.offsets[number]
        expected = logp[where - 1, tokens[where]]
        np.testing.assert_allclose(
            packed[episodes.offsets[number] : episodes.offsets[number + 1]], expected, rtol=0, atol=1e-12
        )


def test_sequences_without_advantage_are_left_out_and_still_counted() -> None:
    rng = np.random.default_rng(0)
    network = model()
    episodes = groups_of(rng, 2, 3)
    advantage = np.array([0.0, 1.0, -2.0, 0.0, 0.0, 0.0])
    credits = Credits(advantage=np.repeat(advantage, episodes.lengths).astype(np.float32))
    whole = TokenLayout(scheme=token_mean)(episodes, credits).weighted()
    less = TokenLayout(scheme=token_mean, skip_zero_advantage=True)(episodes, credits).weighted()
    assert len(less.episodes) == 2
    assert len(less) == 1
    torch.testing.assert_close(gradient(network, [less]), gradient(network, [whole]), rtol=1e-6, atol=1e-8)


def test_a_common_beginning_is_laid_out_once() -> None:
    system = np.arange(8, dtype=np.int32)
    asked = [np.append(system, [one, 9]).astype(np.int32) for one in (1, 2, 3)]
    said = [np.array([4, 5], dtype=np.int32)] * 3
    episodes = supervised_episodes(asked, said)
    rows = TokenLayout(scheme=token_mean)(episodes, Credits(advantage=episodes.reward))
    assert rows.prefix_lengths.tolist() == [8]
    # eight tokens once, then for each sequence: its question (2) and its first answer token (1)
    assert rows.sizes().tolist() == [8 + 3 * 3]
    assert len(rows.tensors().packed.tokens) == 8 + 3 * 3


def test_a_short_question_is_laid_out_once_for_its_answers() -> None:
    asked = [np.arange(n, dtype=np.int32) for n in (2, 2, 2, 3)]
    said = [np.full(40, number, dtype=np.int32) for number in range(4)]
    episodes = replace(supervised_episodes(asked, said), group=np.array([0, 0, 0, 1]))
    rows = TokenLayout(scheme=token_mean)(episodes, Credits(advantage=episodes.reward))
    assert rows.prefix_lengths.tolist() == [2, 3]  # the second question begins like the first, which is not enough
    assert rows.sizes().tolist() == [2 + 3 * 39, 3 + 39]


def test_sequences_stay_apart_where_minibatches_need_their_rows() -> None:
    said = [np.full(5, number, dtype=np.int32) for number in range(6)]
    episodes = supervised_episodes([np.arange(20, dtype=np.int32)] * 6, said)
    credits = Credits(advantage=episodes.reward)
    layout = TokenLayout(scheme=token_mean, min_rows=2)
    assert len(layout(episodes, credits)) == 6  # one question: in a row of its own there would be one minibatch
    two = replace(episodes, group=np.repeat([0, 1], 3))
    assert len(replace(layout, row_tokens=36)(two, credits)) == 2
    assert len(replace(layout, unit="group")(two, credits)) == 2


@examples(30)
@given(seed=st.integers(0, 1000), count=st.integers(1, 3), shares=st.integers(1, 6), pass_tokens=st.integers(4, 60))
def test_ranks_and_passes_take_rows_apart_and_leave_minibatches_as_they_are(
    seed: int, count: int, shares: int, pass_tokens: int
) -> None:
    rng = np.random.default_rng(seed)
    asked = [np.arange(int(size), dtype=np.int32) for size in np.repeat(rng.integers(2, 9, 3), 3)]
    said = [rng.integers(0, 9, int(rng.integers(1, 8))).astype(np.int32) for _ in asked]
    episodes = replace(supervised_episodes(asked, said), group=np.repeat([0, 1, 2], 3))
    credits = Credits(advantage=rng.normal(size=episodes.decisions).astype(np.float32))
    alone = TokenLayout(scheme=token_mean, min_rows=count)
    whole, cut = alone(episodes, credits), replace(alone, shares=shares, pass_tokens=pass_tokens)(episodes, credits)
    assert len(cut) == len(whole)
    order = rng.permutation(len(whole))
    for one, other in zip(split_by_rows(whole, order, count), split_by_rows(cut, order, count), strict=True):
        assert isinstance(one, TokenRows) and isinstance(other, TokenRows)
        assert np.array_equal(one.advantage, other.advantage)
        assert np.array_equal(one.sequence_weight, other.sequence_weight)
        assert len(other) >= min(shares, len(other.episodes))
        longest = np.diff(other.episodes.transcript.offsets).max()
        assert other.sizes().max() <= max(pass_tokens, longest)


def rows_by_comparison(episodes: Episodes, row_tokens: int) -> tuple[list[int], list[int]]:
    """What the layout promises, token by token: each sequence is held against the first of the row before it."""
    seen, starts, trunks, read = episodes.transcript, list[int](), list[int](), 0
    for number, (begin, end) in enumerate(zip(seen.offsets[:-1].tolist(), seen.offsets[1:].tolist(), strict=True)):
        prompt = int(seen.at[episodes.offsets[number]]) - begin
        if starts:
            first, together = int(seen.offsets[starts[-1]]), number - starts[-1]
            most = alike = min(trunks[-1], prompt)
            while not np.array_equal(seen.tokens[first : first + alike], seen.tokens[begin : begin + alike]):
                alike -= 1
            assert alike <= most
            long_enough = episodes.group[number] == episodes.group[number - 1] or MIN_SHARED_PART * alike >= end - begin
            saves = together * alike > (together - 1) * trunks[-1] and long_enough
            if saves and read + end - begin - together * alike <= row_tokens:
                trunks[-1], read = alike, read + end - begin
                continue
        starts.append(number)
        trunks.append(prompt)
        read = end - begin
    return starts, trunks


@examples(60)
@given(seed=st.integers(0, 10_000), row_tokens=st.integers(0, 80))
def test_rows_are_those_of_a_comparison_token_by_token(seed: int, row_tokens: int) -> None:
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, 2, int(rng.integers(1, 12))).astype(np.int32) for _ in range(3)]
    prompts = [np.append(stems[int(rng.integers(3))], rng.integers(0, 2, int(rng.integers(0, 4)))) for _ in range(12)]
    answers = [rng.integers(0, 2, int(rng.integers(1, 6))).astype(np.int32) for _ in prompts]
    episodes = supervised_episodes([prompt.astype(np.int32) for prompt in prompts], answers)
    episodes = replace(episodes, group=np.sort(rng.integers(0, 8, 12)))
    rows = TokenLayout(scheme=token_mean, row_tokens=row_tokens)(episodes, Credits(advantage=episodes.reward))
    starts, trunks = rows_by_comparison(episodes, row_tokens)
    assert (rows.row_offsets[:-1].tolist(), rows.prefix_lengths.tolist()) == (starts, trunks)


def test_anchor_is_the_reference_at_every_decision_whatever_the_budget() -> None:
    rng = np.random.default_rng(5)
    network = model()
    episodes = groups_of(rng, 3, 2)
    rows = TokenLayout(scheme=token_mean)(episodes, advantages(rng, episodes))

    def logp_of(batch: TokenBatch) -> tuple[torch.Tensor]:
        return (network.token_logprobs(network.hidden(batch.packed)[batch.at], batch.chosen).logp,)

    (whole,) = rows.evaluate(logp_of, 1 << 30)
    (pieces,) = rows.evaluate(logp_of, 5)
    np.testing.assert_allclose(whole, pieces, rtol=0, atol=1e-12)
    np.testing.assert_allclose(logp_of(rows.tensors())[0].detach().numpy(), whole, rtol=0, atol=1e-12)


def test_rows_that_cannot_contribute_are_not_asked() -> None:
    rng = np.random.default_rng(5)
    episodes = groups_of(rng, 4, 2)
    advantage = np.where(np.repeat(np.array([1, 1, 0, 0, 1, 0, 0, 0]), episodes.lengths) > 0, 1.0, 0.0)
    layout = TokenLayout(scheme=token_mean, skip_zero_advantage=True)
    rows = layout(episodes, Credits(advantage=advantage.astype(np.float32)))
    seen: list[int] = []

    def ones(batch: TokenBatch) -> tuple[torch.Tensor]:
        seen.append(len(batch.at))
        return (torch.ones(len(batch.at)),)

    (answer,) = rows.evaluate(ones, 1 << 30)
    assert sum(seen) < episodes.decisions
    assert (answer[advantage > 0] == 1).all()
    assert answer.sum() == sum(seen)


def test_a_batch_that_is_filled_up_has_the_same_gradient() -> None:
    rng = np.random.default_rng(8)
    network = model()
    episodes = groups_of(rng, 3, 3)
    credits = advantages(rng, episodes)
    plain = TokenLayout(scheme=token_mean)(episodes, credits).weighted()
    filled = TokenLayout(scheme=token_mean, pad_to_size=True)(episodes, credits).weighted()
    packed = filled.tensors().packed
    assert len(packed.tokens) == padded_size(len(plain.tensors().packed.tokens)) == packed.offsets[-1]
    torch.testing.assert_close(gradient(network, [filled]), gradient(network, [plain]), rtol=0, atol=1e-12)


def test_few_sizes_and_little_waste() -> None:
    sizes = {padded_size(tokens) for tokens in range(1, 16385)}
    assert len(sizes) < 60
    assert all(tokens <= padded_size(tokens) <= max(64, tokens * 9 / 8 + 1, tokens + 63) for tokens in range(1, 16385))
    assert [padded_size(tokens) for tokens in (1, 64, 65, 1024, 1025, 5000)] == [64, 64, 128, 1024, 1152, 5120]


@pytest.mark.parametrize(
    "scheme", [token_mean, sequence_mean, partial(constant_length, length=7), PromptScheme(prompt_sequence_mean)]
)
def test_rows_of_one_dialogue_weigh_as_one_sequence(scheme) -> None:
    """Six rows of four dialogues: each token weighs as it would if each dialogue were one row."""
    said = [np.arange(1, 2 + count, dtype=np.int32) for count in (1, 2, 3, 1, 2, 2)]
    dialogue, group = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 0, 1])
    rows = supervised_episodes([np.ones(1, np.int32)] * 6, said)
    rows = replace(rows, id=dialogue, part=np.array([0, 1, 0, 0, 0, 1]), group=np.append(group, 1)[dialogue])
    whole = [np.concatenate([one for one, owner in zip(said, dialogue, strict=True) if owner == k]) for k in range(4)]
    alone = replace(supervised_episodes([np.ones(1, np.int32)] * 4, whole), group=np.append(group, 1))
    layout = TokenLayout(scheme=scheme)

    def weights(episodes: Episodes) -> np.ndarray:
        laid = layout(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32))).weighted()
        assert laid.sequence_weight is not None
        return np.repeat(laid.sequence_weight, laid.episodes.lengths)

    np.testing.assert_array_equal(weights(rows), weights(alone))


@pytest.mark.parametrize("scheme", [token_mean, sequence_mean, PromptScheme(prompt_sequence_mean)])
@examples(15)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4), st.integers(0, 99))
def test_what_the_environment_says_has_no_weight(scheme, talks: list[list[int]], seed: int) -> None:
    """0, 1 and 1,000 tokens between the turns of dialogues: the loss has a term for each sampled token and no other,
    with the same weights and advantages."""
    rng = np.random.default_rng(seed)
    said = [[rng.integers(1, VOCAB, count).astype(np.int32) for count in talk] for talk in talks]
    advantage = rng.normal(size=sum(map(sum, talks))).astype(np.float32)
    found: list[tuple[list[float], ...]] = []
    for count in (0, 1, 1000):
        heard = np.zeros(count, np.int32)  # nobody samples token 0
        pieces = [[np.ones(1, np.int32), *(np.append(heard, turn) for turn in talk)] for talk in said]
        texts = [np.concatenate(talk).astype(np.int32) for talk in pieces]
        whole = supervised_episodes([text[:1] for text in texts], [text[1:] for text in texts])
        episodes = whole.keep_decisions(np.asarray(whole.chosen) != 0)
        rows = TokenLayout(scheme=scheme)(episodes, Credits(advantage=advantage)).weighted()
        batch = rows.tensors()
        found.append((batch.weight.tolist(), batch.advantage.tolist(), batch.chosen.tolist()))
        assert batch.chosen.tolist() == np.concatenate([turn for talk in said for turn in talk]).tolist()
    assert found[0] == found[1] == found[2]
