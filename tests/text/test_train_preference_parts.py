"""Parts of the recipes of preferences: losses by their names, answers of other prompts, the distance from the start."""

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import TickingClock
from torch import Tensor

from hone.core.episodes import Episodes, ScoreStatus
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.models.packing import pack_rows
from hone.objectives import preference
from hone.objectives.batchwide import aot_partners, same_rank
from hone.objectives.implicit import alpha_link, forward_kl_link, js_link, length_desensitised
from hone.objectives.terms import LossTerms
from hone.sources.logged import LogSource
from hone.text.answer_data import answer_episodes, answer_tokens
from hone.text.evaluate.engine_actor import make_engine
from hone.text.preference import preference_job
from hone.text.preference.answer_loss import AnswerView, with_mismatched_answers
from hone.text.preference.pair_losses import PairAlgorithm
from hone.text.preference.preference_job import ReferenceLog, SamplesConfig, StartDistance, prompts_to_answer

TOKENIZER = character_tokenizer(["abcdefghij"])


def view_of(pairs: int = 4, seed: int = 0) -> AnswerView:
    """Pairs in mixed order, with numbers of the size of real answers."""
    rng = np.random.default_rng(seed)
    label = torch.tensor([1.0, -1.0, -1.0, 1.0] * (pairs // 2))
    columns = (torch.from_numpy(rng.normal(-20, 5, 2 * pairs)) for _ in range(2))
    logp, ref_logp = columns
    return AnswerView(
        logp=logp.requires_grad_(),
        ref_logp=ref_logp,
        length=torch.from_numpy(rng.integers(3, 9, 2 * pairs)),
        label=label,
        alignment=torch.from_numpy(rng.normal(-0.5, 0.3, 2 * pairs)),
    )


def sides(view: AnswerView) -> tuple[Tensor, Tensor]:
    ratio = view.log_ratio()
    return ratio[view.label > 0], ratio[view.label < 0]


BY_HAND: dict[str, tuple[Callable[..., LossTerms], dict[str, float]]] = {
    "dpo": (preference.dpo, {"beta": 0.2}),
    "conservative": (preference.dpo, {"smoothing": 0.2}),
    "robust": (preference.robust_dpo, {"smoothing": 0.2}),
    "ipo": (preference.ipo, {"beta": 0.4}),
    "hinge": (preference.hinge, {"beta": 0.4}),
    "exo": (preference.exo_pair, {"smoothing": 0.01}),
    "discopop": (preference.discopop, {"sharpness": 0.2}),
    "nca": (preference.nca_pair, {"beta": 0.3}),
    "sppo": (preference.sppo, {"probability": 0.8}),
    "apo_zero": (preference.apo_zero, {"beta": 0.3}),
    "apo_down": (preference.apo_down, {"beta": 0.3}),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_name_means_its_function_with_its_numbers(kind: str) -> None:
    function, numbers = BY_HAND[kind]
    spec = PairAlgorithm.model_validate({"loss": {"kind": kind, **numbers}}).spec()
    view = view_of()
    assert torch.equal(spec.objective(view).loss, function(*sides(view), **numbers).loss)
    assert spec.statistic is None
    assert (spec.unit, spec.needs_reference, spec.excess_weight) == ("pair", True, 1.0)


def test_ranks_are_taken_over_all_answers_that_are_shown() -> None:
    view = view_of(6)
    spec = PairAlgorithm.model_validate({"loss": {"kind": "aot", "beta": 0.3, "comparison": "hinge"}}).spec()
    assert spec.statistic is not None
    with torch.no_grad():
        statistic = spec.statistic(view)
    won, lost = view.label > 0, view.label < 0
    assert view.ref_logp is not None
    margin, anchor = view.logp[won] - view.logp[lost], view.ref_logp[won] - view.ref_logp[lost]
    partner = torch.from_numpy(aot_partners(margin.detach().numpy(), anchor.numpy()))
    assert torch.equal(statistic[won], partner)
    found = spec.objective(replace(view, statistic=statistic)).loss
    expected = preference.aot(margin, partner, beta=0.3, comparison=preference.hinge_comparison).loss
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_unpaired_ranks_join_answers_of_any_pair() -> None:
    view = view_of(6)
    spec = PairAlgorithm.model_validate({"loss": {"kind": "aot_unpaired", "beta": 0.3, "smoothing": 0.1}}).spec()
    assert spec.statistic is not None
    with torch.no_grad():
        statistic = spec.statistic(view)
    chosen, rejected = sides(view)
    partners = [
        torch.from_numpy(same_rank(one.detach().numpy(), other.detach().numpy()))
        for one, other in ((chosen, rejected), (rejected, chosen))
    ]
    expected = preference.aot_unpaired(chosen, rejected, *partners, beta=0.3, smoothing=0.1).loss
    assert torch.equal(spec.objective(replace(view, statistic=statistic)).loss, expected)


def test_the_shift_moves_on_with_its_step_only() -> None:
    view = view_of()
    spec = PairAlgorithm.model_validate({"loss": {"kind": "bco_pair", "beta": 0.3}}).spec()
    assert spec.running is not None
    assert spec.statistic is not None
    with torch.no_grad():
        first, again = spec.statistic(view), spec.statistic(view)
    assert torch.equal(first, again)
    assert float(first[0]) == pytest.approx(float(view.log_ratio().detach().mean()))
    found = spec.objective(replace(view, statistic=first)).loss
    chosen, rejected = sides(view)
    assert torch.equal(found, preference.bco_pair(chosen, rejected, first[:4], beta=0.3).loss)
    spec.running.commit(None)  # type: ignore[arg-type]
    other = view_of(seed=1)
    with torch.no_grad():
        later = spec.statistic(other)
    both = torch.cat([view.log_ratio(), other.log_ratio()]).detach().mean()
    assert float(later[0]) == pytest.approx(float(both))
    saved = spec.running.state()
    restored = PairAlgorithm.model_validate({"loss": {"kind": "bco_pair"}}).spec().running
    assert restored is not None
    restored.restore(saved)
    assert restored.shift == spec.running.shift


@pytest.mark.parametrize(
    ("divergence", "link"),
    [
        ({"kind": "forward_kl"}, forward_kl_link),
        ({"kind": "jensen_shannon"}, js_link),
        ({"kind": "alpha", "alpha": 0.3}, lambda score: alpha_link(score, alpha=0.3)),
    ],
)
def test_divergences_and_lengths_change_what_is_compared(divergence: dict[str, Any], link: Any) -> None:
    view = view_of()
    spec = PairAlgorithm.model_validate({"divergence": divergence, "length_normalised": True}).spec()
    per_token = view.log_ratio() / view.length
    expected = preference.dpo(link(per_token[view.label > 0]), link(per_token[view.label < 0])).loss
    torch.testing.assert_close(spec.objective(view).loss, expected, rtol=1e-12, atol=1e-12)


def test_pairs_are_weighted_by_their_probability() -> None:
    view = view_of()
    spec = PairAlgorithm.model_validate({"wpo_cap": 0.5}).spec()
    assert spec.needs_alignment
    assert view.alignment is not None
    joint = (view.alignment[view.label > 0] + view.alignment[view.label < 0]).exp().clamp(max=0.5)
    torch.testing.assert_close(spec.objective(view).loss, joint * preference.dpo(*sides(view)).loss)


def test_ld_alpha_is_the_weight_of_what_one_answer_has_more() -> None:
    assert PairAlgorithm.model_validate({"ld_alpha": 0.25}).spec().excess_weight == 0.25
    sums = length_desensitised(torch.ones(5), torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2, 2]), alpha=0.25)
    assert sums.tolist() == [2.25, 2.0]


# ------------------------------------------------------------------------------------------------- the log


def log_of(prompts: list[str], answers: list[str]) -> Episodes:
    tokens = [
        answer_tokens(TOKENIZER.encode(prompt), TOKENIZER.encode(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return answer_episodes(tokens, scores=[1.0] * len(tokens), groups=list(range(len(tokens))))


def texts_of(episodes: Episodes) -> list[tuple[str, str]]:
    seen = episodes.transcript
    found: list[tuple[str, str]] = []
    for number in range(len(episodes)):
        begin, middle = seen.offsets[number], seen.at[episodes.offsets[number]]
        end = seen.offsets[number + 1]
        found.append((TOKENIZER.decode(seen.tokens[begin:middle]), TOKENIZER.decode(seen.tokens[middle:end])))
    return found


def test_answers_of_other_prompts_by_hand() -> None:
    log = log_of(["a", "a", "b", "c"], ["de", "fg", "hij", "d"])
    found = with_mismatched_answers(log, 3)
    assert texts_of(found) == [
        ("a", "de"), ("a", "hi"),  # cut: prompt and answer have room for three tokens
        ("a", "fg"), ("a", "hi"),
        ("b", "hij"), ("b", "d"),
        ("c", "d"), ("c", "de"),
    ]  # fmt: skip
    assert found.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.scored.tolist() == [True, False] * 4
    assert np.isnan(found.score[1::2]).all()
    assert found.status[1] == ScoreStatus.UNSCORABLE


def test_one_prompt_has_no_answers_of_others() -> None:
    log = log_of(["a", "a"], ["b", "c"])
    assert with_mismatched_answers(log, 10) is log


@given(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=12), context=st.integers(1, 6))
def test_every_answer_gets_one_of_another_prompt(names: list[str], context: int) -> None:
    log = log_of(names, ["defgh"[: 1 + place % 5] for place in range(len(names))])
    found = with_mismatched_answers(log, context)
    told = texts_of(found)
    own = [text for text, scored in zip(told, found.scored.tolist(), strict=True) if scored]
    assert own == texts_of(log)
    others = [text for text, scored in zip(told, found.scored.tolist(), strict=True) if not scored]
    if len(set(names)) < 2 or context < 2:
        assert others == []
        return
    assert [prompt for prompt, _ in others] == names
    answers = {prompt: {answer[: context - 1] for name, answer in texts_of(log) if name != prompt} for prompt in names}
    assert all(answer in answers[prompt] for prompt, answer in others)


@examples(30)
@given(rows=st.integers(1, 8), batch=st.integers(1, 5), planned=st.integers(0, 10), draws=st.integers(1, 5))
def test_every_drawn_answer_has_been_asked_for_once(rows: int, batch: int, planned: int, draws: int) -> None:
    log = log_of(["a"] * rows, ["bcd"[: 1 + place % 3] for place in range(rows)])
    asked: list[tuple[str, int]] = []

    def logp(policy: Any, episodes: Episodes) -> np.ndarray:
        asked.extend((policy, int(group)) for group in episodes.group)
        return -1.0 - episodes.group[episodes.owner]

    source = ReferenceLog(
        source=LogSource(log=log, batch_size=batch, seed=3, unit="group"),
        logp=logp,
        open_reference=lambda: "opened",  # type: ignore[arg-type, return-value]
        is_start=True,
        units_drawn=planned,
    )
    source.publish("start")  # type: ignore[arg-type]
    for _ in range(draws):
        drawn = source.collect()
        assert drawn.ref_logp is not None
        assert drawn.ref_logp.tolist() == (-1.0 - (drawn.group % rows)[drawn.owner]).tolist()
    assert len(asked) == len({group for _, group in asked})
    assert sum(policy == "start" for policy, _ in asked) == min(planned, rows)


# ------------------------------------------------------------------------------------------------- the distance


def policy_of(seed: int) -> TokenPolicy:
    config = ModelConfig(
        vocab_size=TOKENIZER.size, hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8
    )
    return TokenPolicy(new_model(config, seed=seed), TOKENIZER)


def test_the_distance_is_the_kl_by_enumeration() -> None:
    """Answers of one token: the sum over the vocabulary is the KL itself."""
    policy, start = policy_of(1), policy_of(2)
    with torch.no_grad():
        policy.decoder.embedding.weight *= 8.0  # far apart, so that the distance is large
    prompt, count = TOKENIZER.encode("ab"), 4000

    def logits(one: TokenPolicy) -> Tensor:

        with torch.no_grad():
            return torch.log_softmax(
                one.decoder.logits(one.decoder.hidden(pack_rows([prompt])))[-1, : TOKENIZER.size], -1
            )

    def logp(one: TokenPolicy, episodes: Episodes) -> np.ndarray:
        return logits(one).numpy().astype(np.float64)[episodes.chosen]

    distance = StartDistance(
        LogSource(log=log_of(["a"], ["b"]), batch_size=1, seed=0),
        logp=logp,
        open_start=lambda: start,
        prompts=[prompt] * count,
        max_tokens=1,
        every=1,
        steps=1,
        seed=0,
    )
    gap = logits(policy) - logits(start)
    exact = float((logits(policy).exp() * gap).sum())
    spread = math.sqrt(float((logits(policy).exp() * (gap - exact).square()).sum()) / count)
    assert exact > 0.05
    assert distance.measure(policy) == pytest.approx(exact, abs=4 * spread)


def test_the_engine_is_gone_before_the_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy of the weights, keys and values are not beside the start and the passes of both policies."""
    made: list[weakref.ref[object]] = []

    def remembered(*given: Any, **named: Any) -> Any:
        engine = make_engine(*given, **named)
        made.append(weakref.ref(engine))
        return engine

    def logp(_: TokenPolicy, episodes: Episodes) -> np.ndarray:
        gc.collect()
        assert [one() for one in made] == [None]
        return np.zeros(episodes.decisions)

    monkeypatch.setattr(preference_job, "make_engine", remembered)
    distance = StartDistance(
        LogSource(log=log_of(["a"], ["b"]), batch_size=1, seed=0), logp=logp, open_start=lambda: policy_of(2),
        prompts=[TOKENIZER.encode("ab")], max_tokens=2, every=1, steps=1, seed=0,
    )  # fmt: skip
    assert distance.measure(policy_of(1)) == 0.0


def test_the_start_is_loaded_once_and_the_last_step_measured() -> None:
    opened: list[TokenPolicy] = []
    policy = policy_of(1)

    def open_start() -> TokenPolicy:
        opened.append(policy_of(2))
        return opened[-1]

    distance = StartDistance(
        LogSource(log=log_of(["a"], ["b"]), batch_size=1, seed=0),
        logp=lambda one, episodes: np.full(episodes.decisions, 1.0 if one is policy else 0.25),
        open_start=open_start,
        prompts=[TOKENIZER.encode("ab")],
        max_tokens=1,
        every=2,
        steps=5,
        seed=0,
        clock=TickingClock(),
    )
    distance.publish(policy)  # before the first step
    assert not distance.measured and not opened
    measured = []
    for _ in range(5):
        distance.collect()
        distance.publish(policy)
        measured.append(dict(distance.measured))
    found = {"preference/kl_to_start_nats": 0.75, "time/distance_s": 0.5}
    assert measured == [{}, found, {}, found, found]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("steps", "interval"), [(0, 1), (1, 1), (10, 1), (11, 2), (14, 2), (20, 2), (21, 3), (300, 30)]
)
def test_a_tenth_of_the_run_is_rounded_up(steps: int, interval: int) -> None:
    """Ten measurements at most, in a short run too."""
    assert SamplesConfig().interval(steps) == interval
    assert SamplesConfig(every=3).interval(steps) == 3


def test_prompts_are_different_and_of_the_log() -> None:
    log = log_of(["a", "b", "a", "c"], ["d"] * 4)
    found = [TOKENIZER.decode(prompt) for prompt in prompts_to_answer(log, 10, seed=0)]
    assert sorted(found) == ["a", "b", "c"]
    assert len(prompts_to_answer(log, 2, seed=0)) == 2
    assert prompts_to_answer(log, 0, seed=0) == []
