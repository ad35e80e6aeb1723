"""The questions that a loss on tokens puts to the policy: which policy the ratio is against, what is chosen once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError, DivergedError
from hone.core.ragged import RaggedArray, offsets_of
from hone.learner.gradient import MetricsAccumulator, _effective_sample_share, micro_batches
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.text.loss import StepColumns, TokenLoss, TokenLossSpec, TokenView, mismatch_metrics
from hone.text.ratio import RatioConfig
from hone.text.rows import TokenLayout, TokenRows
from hone.text.tasks.world import supervised_episodes

LAYOUT = TokenLayout(scheme=token_mean)
TOKENIZER = character_tokenizer(["abcdefghij"])


def policy(seed: int = 3) -> TokenPolicy:
    config = ModelConfig(
        vocab_size=TOKENIZER.size, hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8
    )
    return TokenPolicy(new_model(config, seed=seed, dtype="float64"), TOKENIZER)


def episodes_of(rng: np.random.Generator, prompts: int = 3, samples: int = 3) -> tuple[Episodes, Credits]:
    asked: list[np.ndarray] = []
    said: list[np.ndarray] = []
    for _ in range(prompts):
        prompt = rng.integers(0, TOKENIZER.size, rng.integers(1, 7)).astype(np.int32)
        for _ in range(samples):
            asked.append(prompt)
            said.append(rng.integers(0, TOKENIZER.size, rng.integers(1, 6)).astype(np.int32))
    episodes = supervised_episodes(asked, said)
    recorded = -2.5 + 0.1 * rng.normal(size=episodes.decisions)
    advantage = rng.normal(size=len(episodes))[episodes.owner].astype(np.float32)
    return replace(episodes, logp=recorded.astype(np.float32)), Credits(advantage=advantage)


def ppo(view: TokenView) -> LossTerms:
    return clipped_surrogate(view.logp, view.denominator_logp, view.advantage, low=0.2, high=0.2)


def loss(**changes: object) -> TokenLossSpec:
    return replace(TokenLossSpec(objective=ppo, scheme=token_mean, proportional_to_advantage=False), **changes)


def whole_view(asked: TokenLoss, network: TokenPolicy, rows: TokenRows) -> TokenView:
    return asked.token_view(network, rows.weighted().tensors())


@pytest.mark.parametrize("denominator", ["self", "recomputed", "recorded"])
def test_what_the_ratio_is_taken_against(denominator) -> None:
    network, later = policy(), policy(seed=4)
    episodes, credits = episodes_of(np.random.default_rng(0))
    asked = TokenLoss(loss=loss(), denominator=denominator, micro_batch_tokens=9)
    rows = asked.layout(LAYOUT, network)(episodes, credits)
    first = whole_view(asked, network, rows)
    moved = whole_view(asked, later, rows)
    if denominator == "self":
        assert torch.equal(first.denominator_logp, first.logp)
        assert torch.equal(moved.denominator_logp, moved.logp)
    elif denominator == "recomputed":  # the policy as it was when the update began, whoever is asked now
        torch.testing.assert_close(moved.denominator_logp, first.logp.detach(), rtol=0, atol=1e-12)
    else:
        assert torch.equal(moved.denominator_logp, torch.from_numpy(episodes.logp))
    assert not first.denominator_logp.requires_grad
    assert torch.equal(first.behaviour_logp, torch.from_numpy(episodes.logp))


def test_the_ratio_against_the_policy_itself_is_exactly_one_and_its_gradient_the_policy_gradient() -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(1))
    asked = TokenLoss(loss=loss(), denominator="self", micro_batch_tokens=1 << 20)
    batch = asked.layout(LAYOUT, network)(episodes, credits).weighted().tensors()
    terms = asked.objective(network, batch)
    assert terms.metrics["policy/ratio_max"].unique().tolist() == [1.0]
    (terms.loss * batch.weight).sum().backward()
    surrogate = torch.cat([p.grad.flatten() for p in network.parameters()])
    network.zero_grad()
    now = network.token_logprobs(batch.packed, batch.at, batch.chosen).logp
    (-batch.advantage * now * batch.weight).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in network.parameters()])
    torch.testing.assert_close(surrogate, plain, rtol=0, atol=1e-12)


def high_half(whole: StepColumns) -> np.ndarray:
    return (whole.entropy >= np.quantile(whole.entropy, 0.5)).astype(np.float64)


def only_chosen(view: TokenView) -> LossTerms:
    assert view.token_factor is not None
    return LossTerms(loss=ppo(view).loss * view.token_factor)


@pytest.mark.parametrize("budget", [5, 11, 1 << 20])
def test_a_selection_over_the_whole_batch_does_not_depend_on_micro_batches(budget) -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(2))
    asked = TokenLoss(
        loss=loss(objective=only_chosen, select_tokens=high_half), denominator="recorded", micro_batch_tokens=budget
    )
    rows = asked.select_tokens(network, asked.layout(LAYOUT, network)(episodes, credits).weighted(), 0)
    for piece in micro_batches(rows, budget):
        batch = piece.tensors()
        (asked.objective(network, batch).loss * batch.weight).sum().backward()
    found = torch.cat([p.grad.flatten() for p in network.parameters()])
    network.zero_grad()
    batch = rows.tensors()
    look = network.token_logprobs(batch.packed, batch.at, batch.chosen, entropy=True)
    assert look.entropy is not None
    chosen = look.entropy.detach() >= look.entropy.detach().quantile(0.5)
    terms = clipped_surrogate(look.logp, batch.behaviour_logp, batch.advantage, low=0.2, high=0.2)
    (terms.loss * chosen * batch.weight).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_likeliest_tokens_are_those_of_the_policy_at_the_start() -> None:
    network, later = policy(), policy(seed=4)
    episodes, credits = episodes_of(np.random.default_rng(3))
    asked = TokenLoss(loss=loss(top_k=3), denominator="self", micro_batch_tokens=9)
    rows = asked.layout(LAYOUT, network)(episodes, credits)
    view = whole_view(asked, later, rows)
    batch = rows.tensors()
    assert view.old_top_k is not None
    assert view.top_k_logp is not None
    for place in range(3):
        of_start = network.token_logprobs(batch.packed, batch.at, view.old_top_k.ids[:, place]).logp
        of_later = later.token_logprobs(batch.packed, batch.at, view.old_top_k.ids[:, place]).logp
        torch.testing.assert_close(view.old_top_k.logp[:, place], of_start.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(view.top_k_logp[:, place], of_later, rtol=0, atol=1e-12)
    assert (view.old_top_k.logp.diff(dim=1) <= 0).all()


def test_the_sampling_mask_is_replayed() -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(4))
    # every second decision could choose between its token and two others
    chosen = episodes.chosen.astype(np.int32)
    lists = [
        sorted({int(token), (int(token) + 1) % 5, (int(token) + 3) % 5}) if place % 2 else []
        for place, token in enumerate(chosen)
    ]
    kept = RaggedArray(
        values=np.array([token for one in lists for token in one], np.int32),
        offsets=offsets_of(np.array([len(one) for one in lists])),
    )
    episodes = replace(episodes, seen=replace(episodes.transcript, kept=kept))
    asked = TokenLoss(loss=loss(), denominator="self", micro_batch_tokens=9)
    rows = asked.layout(LAYOUT, network)(episodes, credits)
    view = whole_view(asked, network, rows)
    batch = rows.tensors()
    for place, tokens in enumerate(lists):
        alone = [
            network.token_logprobs(batch.packed, batch.at[place : place + 1], torch.tensor([token])).logp
            for token in (tokens or range(TOKENIZER.size))
        ]
        total = torch.cat(alone).logsumexp(0)
        mine = network.token_logprobs(batch.packed, batch.at[place : place + 1], batch.chosen[place : place + 1]).logp
        torch.testing.assert_close(view.logp[place], mine[0] - total, rtol=0, atol=1e-12)


def test_mismatch_is_measured_before_anything_is_clipped() -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(5))
    asked = TokenLoss(loss=loss(), denominator="recomputed", micro_batch_tokens=9)
    view = whole_view(asked, network, asked.layout(LAYOUT, network)(episodes, credits))
    gap = (view.old_logp - view.behaviour_logp.double()).detach().numpy()
    tally = MetricsAccumulator()
    tally.add(LossTerms(loss=view.logp, compute_metrics=lambda: mismatch_metrics(view)))
    figures = tally.means()
    assert figures["mismatch/mean"] == pytest.approx(np.abs(gap).mean())
    assert figures["mismatch/value_max"] == pytest.approx(np.abs(gap).max())
    assert figures["mismatch/ratio_above_2"] == pytest.approx((np.exp(gap) > 2).mean())
    weight = np.exp(gap)
    assert figures["mismatch/ratio_ess"] == pytest.approx(weight.sum() ** 2 / (len(gap) * (weight**2).sum()))


def test_effective_share_by_hand() -> None:
    # weights 1, 1, 2: (4)^2 / (3 * 6)
    assert _effective_sample_share(3, 4, 6) == pytest.approx(16 / 18)
    assert _effective_sample_share(2, 0, 0) == 0


def test_the_alarm_names_the_figure_and_the_limit() -> None:
    RatioConfig().require_small_mismatch({"mismatch/mean": 5.0})
    RatioConfig(max_mismatch_nats=0.1).require_small_mismatch({"mismatch/mean": 0.09})
    with pytest.raises(DivergedError, match=r"0\.11 nats.*max_mismatch_nats = 0\.1"):
        RatioConfig(max_mismatch_nats=0.1).require_small_mismatch({"mismatch/mean": 0.11})


def test_auto_is_the_first_that_fits() -> None:
    auto = RatioConfig()
    assert auto.resolve_denominator(updates_per_rollout=1, is_stale=False) == "self"
    assert auto.resolve_denominator(updates_per_rollout=4, is_stale=False) == "recomputed"
    assert auto.resolve_denominator(updates_per_rollout=1, is_stale=True) == "recorded"
    assert RatioConfig(denominator="recorded").resolve_denominator(updates_per_rollout=1, is_stale=False) == "recorded"
    with pytest.raises(ValueError, match="4 on older answers"):
        RatioConfig(denominator="self").resolve_denominator(updates_per_rollout=4, is_stale=True)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (RatioConfig(correction="truncated_is", weight_cap=1.1), lambda rho, seq: np.minimum(rho, 1.1)),
        (
            RatioConfig(correction="masked_is", weight_floor=0.9, weight_cap=1.1),
            lambda rho, seq: np.where((rho >= 0.9) & (rho <= 1.1), rho, 0.0),
        ),
        (
            RatioConfig(correction="sequence_truncated_is", weight_cap=1.5),
            lambda rho, seq: np.minimum([np.prod(rho[seq == one]) for one in seq], 1.5),
        ),
        (
            RatioConfig(correction="geometric_kept", weight_floor=0.95, weight_cap=1.05),
            lambda rho, seq: np.array([0.95 <= np.prod(rho[seq == s]) ** (1 / (seq == s).sum()) <= 1.05 for s in seq]),
        ),
    ],
)
def test_a_correction_multiplies_the_loss(ratio, expected) -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(6))
    plain = TokenLoss(loss=loss(), denominator="recomputed", micro_batch_tokens=1 << 20)
    rows = plain.layout(LAYOUT, network)(episodes, credits)
    batch = rows.weighted().tensors()
    view = plain.token_view(network, batch)
    rho = np.exp((view.old_logp - view.behaviour_logp.double()).detach().numpy())
    factor = expected(rho, batch.sequence.numpy())
    corrected = replace(plain, correction=ratio.resolve_correction()).objective(network, batch)
    wanted = plain.objective(network, batch).loss.detach().numpy() * factor
    np.testing.assert_allclose(corrected.loss.detach().numpy(), wanted, rtol=0, atol=1e-9)
    assert np.mean(factor != 1.0) > 0


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (RatioConfig(weight_cap=2.0), 'are bounds of a learner.ratio.correction; it is "none"'),
        (RatioConfig(correction="kpop", weight_floor=0.5), "has no lower bound"),
    ],
)
def test_bounds_that_a_method_does_not_have(ratio, said) -> None:
    with pytest.raises(ValueError, match=said):
        ratio.resolve_correction()


def test_correcting_twice_is_refused() -> None:
    twice = RatioConfig(correction="icepop", denominator="recorded")
    with pytest.raises(ValueError, match="twice is wrong"):
        twice.resolve_denominator(updates_per_rollout=1, is_stale=False)
    assert RatioConfig().resolve_correction() is None


@pytest.mark.parametrize("denominator", ["self", "recomputed", "recorded"])
def test_answers_that_are_no_draws_of_the_policy_are_refused(denominator) -> None:
    """A search selects answers; their log-probabilities are NaN, and a policy gradient of them would be another one."""
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(0))
    logp = episodes.logp.copy()
    logp[episodes.offsets[2] : episodes.offsets[3]] = np.nan
    asked = TokenLoss(loss=loss(), denominator=denominator, micro_batch_tokens=9)
    with pytest.raises(DataError, match="1 of 9 answers have no log-probabilities: they were selected by a search"):
        asked.layout(LAYOUT, network)(replace(episodes, logp=logp), credits)
