"""Losses of the protocol: a value by hand, hone's objective, and the documented formula by a second program."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("tinker", reason="pip install 'hone-rl[training-service]'")

from hone.core.errors import DataError
from hone.objectives.policy import cispo, clipped_surrogate, dro, importance_weighted, reinforce_loss
from hone.objectives.sequence import gspo_token
from hone.text.training_service.losses import LOSSES, find_loss
from hone.text.training_service.messages import Datum

N = 64


def row(seed: int = 0, **inputs: np.ndarray) -> Datum:
    draws = np.random.default_rng(seed)
    given = {
        "target_tokens": draws.integers(0, 9, N),
        "logprobs": -draws.random(N).astype(np.float32) * 3,
        "advantages": draws.standard_normal(N).astype(np.float32),
        "weights": draws.random(N).astype(np.float32),
    }
    return Datum(tokens=draws.integers(0, 9, N), inputs={**given, **inputs})


def documented(name: str, lp: torch.Tensor, datum: Datum, options: dict[str, float]) -> torch.Tensor:
    """The formulas of the service's documentation, token by token."""
    q, adv, w = (torch.from_numpy(np.array(datum.inputs[key])) for key in ("logprobs", "advantages", "weights"))
    low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", math.inf)
    mean = (lp.detach() - q).mean()
    total = lp.new_zeros(())
    for t in range(N):
        r = torch.exp(lp[t] - q[t])
        clipped = r.clamp(low, high)
        total = (
            total
            + {
                "cross_entropy": lambda t=t: -w[t] * lp[t],
                "importance_sampling": lambda r=r, t=t: -r * adv[t],
                "ppo": lambda r=r, clipped=clipped, t=t: -torch.minimum(r * adv[t], clipped * adv[t]),
                "cispo": lambda clipped=clipped, t=t: -clipped.detach() * lp[t] * adv[t],
                "dro": lambda t=t: -(lp[t] * adv[t] - 0.5 * options["beta"] * (lp[t] - q[t]) ** 2),
                "gspo": lambda t=t: (
                    -torch.minimum(
                        torch.exp(mean + lp[t] - lp[t].detach()) * adv[t],
                        torch.exp(mean + lp[t] - lp[t].detach()).clamp(low, high) * adv[t],
                    )
                ),
            }[name]()
        )
    return total


def objective(name: str, lp: torch.Tensor, datum: Datum, o: dict[str, float]) -> torch.Tensor:
    """hone's own, as its recipes call them."""
    q, adv, w = (torch.from_numpy(np.array(datum.inputs[key])) for key in ("logprobs", "advantages", "weights"))
    low, high = 1 - o.get("clip_low_threshold", 0), o.get("clip_high_threshold", 0) - 1
    terms = {
        "cross_entropy": lambda: reinforce_loss(lp, w),
        "importance_sampling": lambda: importance_weighted(lp, q, adv),
        "ppo": lambda: clipped_surrogate(lp, q, adv, low=low, high=high),
        "cispo": lambda: cispo(lp, q, adv, ratio_floor=1 - low, ratio_cap=1 + high),
        "dro": lambda: dro(lp, q, adv, beta=o["beta"]),
        "gspo": lambda: gspo_token(lp, q, adv, torch.zeros(N, dtype=torch.int64), low=low, high=high),
    }[name]()
    return terms.loss.sum()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_is_the_documented_formula_and_hones_objective(name: str, seed: int) -> None:
    """Value and gradient are those of hone's objective to the bit. Of the formula, computed token by token, they are to
    12 digits in float64; in float32 they differ from that by what its rounding brings."""
    datum, loss = row(seed), LOSSES[name]
    options = loss.settings(name, {"beta": 0.05} if name == "dro" else {})
    noise = torch.from_numpy(np.random.default_rng(seed + 9).standard_normal(N).astype(np.float32)) * 0.3
    start = torch.from_numpy(np.array(datum.inputs["logprobs"])) + noise

    def gradient(
        compute: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32
    ) -> tuple[float, torch.Tensor]:
        lp = start.to(dtype).detach().clone().requires_grad_()
        value = compute(lp)
        (slope,) = torch.autograd.grad(value, lp)
        return float(value.detach()), slope

    value, slope = gradient(lambda lp: loss(lp, datum, options))
    theirs, same = gradient(lambda lp: objective(name, lp, datum, options))
    assert value == theirs and torch.equal(slope, same)
    whole, exact = gradient(lambda lp: documented(name, lp, datum, options), torch.float64)
    wide, slope64 = gradient(lambda lp: loss(lp, datum, options), torch.float64)
    assert wide == pytest.approx(whole, rel=1e-12)
    assert float((slope64 - exact).norm()) <= 1e-12 * float(exact.norm())
    assert value == pytest.approx(whole, rel=1e-6, abs=1e-6)
    assert float((slope.double() - exact).norm()) <= 1e-6 * float(exact.norm())


def test_values_by_hand() -> None:
    """One token with l = log 0.5, q = log 0.25, so r = 2."""
    datum = Datum(
        tokens=np.array([1]),
        inputs={
            "target_tokens": np.array([2]),
            "logprobs": np.array([math.log(0.25)], np.float32),
            "advantages": np.array([3.0], np.float32),
            "weights": np.array([0.5], np.float32),
        },
    )
    lp = torch.tensor([math.log(0.5)])
    expected = {
        "cross_entropy": -0.5 * math.log(0.5),
        "importance_sampling": -2 * 3.0,
        "ppo": -1.2 * 3.0,
        "cispo": -2 * 3.0 * math.log(0.5),
        "dro": -(3.0 * math.log(0.5) - 0.1 * math.log(2) ** 2),
        "gspo": -1.0004 * 3.0,
    }
    for name, value in expected.items():
        options = LOSSES[name].settings(name, {"beta": 0.2} if name == "dro" else {})
        assert float(LOSSES[name](lp, datum, options)) == pytest.approx(value, rel=1e-6), name


def test_targets_in_columns_are_a_distillation() -> None:
    """sum_k w_k log p_k of two tokens a position equals the sum of two rows of one."""
    both = np.random.default_rng(0).integers(0, 9, (N, 2))
    weights = np.random.default_rng(1).random((N, 2)).astype(np.float32)
    datum = Datum(tokens=both[:, 0], inputs={"target_tokens": both, "weights": weights})
    lp = -torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    assert float(LOSSES["cross_entropy"](lp, datum, {})) == pytest.approx(
        float(-(lp.numpy() * weights).sum()), rel=1e-6
    )


def test_gspo_reads_the_tokens_of_its_mask_alone() -> None:
    mask = np.ones(N, np.float32)
    mask[:10] = 0
    whole, kept = row(), row(sequence_ratio_mask=mask)
    lp = torch.from_numpy(np.array(whole.inputs["logprobs"])) + 0.1 * torch.arange(N) / N
    shorter = {key: np.array(array)[10:] for key, array in whole.inputs.items()}
    options = LOSSES["gspo"].settings("gspo", {})
    alone = LOSSES["gspo"](lp[10:], Datum(tokens=whole.tokens[10:], inputs=shorter), options)
    assert float(LOSSES["gspo"](lp, kept, options)) == float(alone)


def test_refusals_name_the_loss_the_key_and_the_row() -> None:
    with pytest.raises(DataError, match=r"'stable_reinforce' is not served: its formula is not published"):
        find_loss("stable_reinforce")
    with pytest.raises(DataError, match=r"'cross_entropi' is not served; did you mean cross_entropy\?"):
        find_loss("cross_entropi")
    with pytest.raises(DataError, match=r"dro needs loss_fn_config\['beta'\]"):
        LOSSES["dro"].settings("dro", {})
    with pytest.raises(
        DataError, match=r"ppo does not know loss_fn_config\['clip_low_threshol'\]; did you mean clip_low_threshold"
    ):
        LOSSES["ppo"].settings("ppo", {"clip_low_threshol": 0.5})
    with pytest.raises(DataError, match=r"must be ratios around 1"):
        LOSSES["ppo"].settings("ppo", {"clip_low_threshold": 1.5})
    missing = LOSSES["ppo"].check("ppo", 3, Datum(tokens=np.array([1]), inputs={"target_tokens": np.array([1])}))
    assert missing == [
        f"datum 3: loss_fn_inputs['{key}'] is missing; ppo needs it" for key in ("logprobs", "advantages")
    ]
    columns = row(target_tokens=np.zeros((N, 2), np.int64))
    assert "K columns are for cross_entropy" in LOSSES["ppo"].check("ppo", 0, columns)[0]
    odd = LOSSES["ppo"].check("ppo", 0, row(clip_low_threshold=np.ones(N, np.float32)))
    assert "loss_fn_inputs['clip_low_threshold'] is not supported" in odd[0]
    empty = LOSSES["gspo"].check("gspo", 0, row(sequence_ratio_mask=np.zeros(N, np.float32)))
    assert "leaves no token" in empty[0]
