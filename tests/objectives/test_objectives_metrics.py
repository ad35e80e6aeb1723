"""The metrics of every loss: which there are, what they measure, and that columns of data get no gradient."""

from collections.abc import Callable

import pytest
import torch
from metric_names import listed
from objectives_cases import CASES
from policy_cases import LOSSES, factors, make_batch, view, weight
from torch import Tensor

from hone.objectives.offline import behaviour_cloning
from hone.objectives.preference import aot_unpaired
from hone.objectives.terms import LossTerms
from hone.objectives.value import discriminator_loss, gaussian_nll, gradient_norm_penalty

BY_NAME = {case.name: case for case in CASES}
PAIR = "preference/accuracy preference/chosen_nats preference/margin_nats preference/rejected_nats"
PAIRS = {case.name for case in CASES if set(case.leaves) == {"chosen", "rejected"}}
ONE_SIDED = "preference/accuracy preference/desirable_nats preference/undesirable_nats"
RATIO = "policy/kl_nats policy/ratio_max"
CLIPPED = f"policy/clip_fraction {RATIO}"
CORRECTED = f"{CLIPPED} mismatch/dropped_fraction mismatch/weight_ess mismatch/weight_max"
DISTANCE = f"{CLIPPED} policy/capped_fraction"
EXPECTED = dict.fromkeys(PAIRS, PAIR) | {
    "dpo reweighted": f"{PAIR} preference/weight",
    "bco_pair": f"{PAIR} preference/shift_nats",
    "aot": "preference/dominance preference/rank_margin_nats",
    "orpo": f"{PAIR} policy/nll_nats preference/log_odds_nats",
    "cpo": f"{PAIR} policy/nll_nats",
    "kto": f"{ONE_SIDED} preference/baseline_nats",
    "bco": f"{ONE_SIDED} preference/shift_nats",
    "apo_zero_unpaired": ONE_SIDED,
    "step_classification": "steps/accuracy",
    "step_regression": "steps/accuracy",
    "implicit_process_reward": "reward_model/accuracy",
    "forward_kl": "distill/forward_kl_nats",
    "reverse_kl": "distill/reverse_kl_nats",
    "generalised_jsd": "distill/jsd_nats",
    "squared_error": "value/error_abs value/mean",
    "huber": "value/error_abs value/mean",
    "clipped_value": "value/clip_fraction value/error_abs value/mean",
    "categorical_values": "value/kl_nats value/mean",
    "quantile_huber_loss": "value/mean value/std",
    "quantile_values kappa=0": "value/mean value/std",
    "ddpg_actor_loss": "policy/q_value",
    "expectile_loss": "value/error_abs value/mean",
    "advantage_weighted_regression": "policy/capped_fraction policy/nll_nats policy/weight",
    "td3_bc_actor_loss": "policy/distance policy/q_value",
    "bcq_vae_loss": "generator/distance generator/kl_nats",
    "mmd": "",
    "mmd gaussian": "",
    "bear_actor_loss": "policy/distance policy/q_value",
    "bear_multiplier_loss": "policy/multiplier",
    "cql_penalty": "value/conservatism",
    "cql_penalty_sampled": "value/conservatism",
    "twin_critic_loss": "value/mean",
    "sac_actor_loss": "policy/entropy_nats",
    "temperature": "policy/temperature",
}
OF_POLICY = {
    "reinforce": "",
    "importance": RATIO,
    "cispo": f"{RATIO} policy/capped_fraction",
    "sapo": f"{RATIO} policy/gate",
    "dro": "policy/squared_log_ratio",
    "decoupled": f"{CLIPPED} mismatch/weight mismatch/weight_max",
    "vespo": "policy/phi policy/ratio_max",
    "clip_cov": f"{CLIPPED} policy/covariance_fraction",
    "kl_cov": f"{RATIO} policy/covariance_fraction",
    **dict.fromkeys(("simko", "simko_dual_clip"), f"{CLIPPED} policy/fork_fraction"),
    "entropy_bonus": f"{CLIPPED} policy/entropy_nats",
}
OF_POLICY |= dict.fromkeys(("dppo_tv", "dppo_kl", "dppo_top_tv", "dppo_top_kl"), DISTANCE)
OF_POLICY |= dict.fromkeys(("kl_k2", "kl_k3", "kl_weighted_k3", "kl_k3_valued_k2"), f"{CLIPPED} policy/kl_reference")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_loss_has_these_metrics(name: str) -> None:
    metrics = BY_NAME[name].loss(**BY_NAME[name].columns()).metrics
    assert set(metrics) == set(EXPECTED[name].split())


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.name)
def test_a_policy_loss_has_these_metrics(case) -> None:
    batch, parameters = make_batch(), weight()
    metrics = set(case.loss(view(batch, parameters, factors(case, batch, parameters))).metrics)
    corrected = case.name.endswith(("tis", "mis", "pop", "rejection"))
    assert metrics == set(OF_POLICY.get(case.name, CORRECTED if corrected else CLIPPED).split())


def test_every_metric_is_documented() -> None:
    known = listed()
    names = {name for text in (*EXPECTED.values(), *OF_POLICY.values(), CORRECTED) for name in text.split()}
    assert [name for name in sorted(names) if not known.fullmatch(name)] == []


# ------------------------------------------------------------------------------------------------- what they measure


@pytest.mark.parametrize("name", sorted(name for name in PAIRS if "_link" not in name))
def test_the_metrics_of_a_pair_are_those_of_its_scores(name: str) -> None:
    columns = BY_NAME[name].columns()
    metrics, chosen, rejected = BY_NAME[name].loss(**columns).metrics, columns["chosen"], columns["rejected"]
    torch.testing.assert_close(metrics["preference/chosen_nats"], chosen)
    torch.testing.assert_close(metrics["preference/rejected_nats"], rejected)
    torch.testing.assert_close(metrics["preference/margin_nats"], chosen - rejected)
    assert torch.equal(metrics["preference/accuracy"], (chosen > rejected).to(chosen.dtype))


MEASURED: dict[str, dict[str, Callable[[dict[str, Tensor]], Tensor]]] = {
    "aot": {
        "preference/dominance": lambda c: (c["margin"] > c["partner"]).double(),
        "preference/rank_margin_nats": lambda c: c["margin"] - c["partner"],
    },
    "orpo": {"policy/nll_nats": lambda c: -c["chosen"]},
    "bco_pair": {"preference/shift_nats": lambda c: c["shift"]},
    "bco": {
        "preference/desirable_nats": lambda c: c["score"][c["desirable"]],
        "preference/undesirable_nats": lambda c: c["score"][~c["desirable"]],
        "preference/shift_nats": lambda c: c["shift"],
        "preference/accuracy": lambda c: ((c["score"] > c["shift"]) == c["desirable"]).double(),
    },
    "kto": {
        "preference/desirable_nats": lambda c: c["score"][c["desirable"]],
        "preference/undesirable_nats": lambda c: c["score"][~c["desirable"]],
        "preference/accuracy": lambda c: ((c["score"] > c["baseline"]) == c["desirable"]).double(),
    },
    "implicit_process_reward": {
        "reward_model/accuracy": lambda c: ((c["score"] > 0) == c["correct"]).double(),
    },
    "squared_error": {
        "value/mean": lambda c: c["value"],
        "value/error_abs": lambda c: (c["value"] - c["target"]).abs(),
    },
    "huber": {"value/mean": lambda c: c["value"], "value/error_abs": lambda c: (c["value"] - c["target"]).abs()},
    "clipped_value": {"value/mean": lambda c: c["value"]},
    "ddpg_actor_loss": {"policy/q_value": lambda c: c["worth"]},
    "expectile_loss": {
        "value/mean": lambda c: c["value"],
        "value/error_abs": lambda c: (c["value"] - c["target"]).abs(),
    },
    "advantage_weighted_regression": {"policy/nll_nats": lambda c: -c["logp"]},
    "td3_bc_actor_loss": {"policy/q_value": lambda c: c["worth"]},
    "bear_actor_loss": {"policy/q_value": lambda c: c["worth"], "policy/distance": lambda c: c["distance"]},
    "twin_critic_loss": {"value/mean": lambda c: c["first"]},
    "sac_actor_loss": {"policy/entropy_nats": lambda c: -c["logp"]},
    "temperature": {"policy/temperature": lambda c: c["log_alpha"].exp().expand(len(c["logp"]))},
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_metric_measures_what_it_is_called(name: str) -> None:
    columns = BY_NAME[name].columns()
    metrics = BY_NAME[name].loss(**columns).metrics
    for metric, measure in MEASURED[name].items():
        torch.testing.assert_close(metrics[metric], measure(columns), msg=metric)


def test_ratios_and_distances_of_the_policy_losses() -> None:
    """The mean ratio of a sequence, or the token's: its estimate of the KL is 0 at ratio 1, and never negative."""
    batch, parameters = make_batch(), weight()
    for case in LOSSES:
        metrics = case.loss(view(batch, parameters, factors(case, batch, parameters))).metrics
        if "policy/kl_nats" in metrics:
            r = metrics["policy/ratio_max"]
            torch.testing.assert_close(metrics["policy/kl_nats"], r - 1 - r.log(), msg=case.name)


# ------------------------------------------------------------------------------------------------- columns of data


DATA = {
    "dpo reweighted": "weight",
    "forward_kl": "teacher",
    "reverse_kl": "teacher",
    "generalised_jsd": "teacher",
    "quantile_huber_loss": "target",
    "expectile_loss": "target",
    "advantage_weighted_regression": "advantage",
    "td3_bc_actor_loss": "scale",
    "bear_actor_loss": "log_multiplier",
    "bear_multiplier_loss": "distance",
    "sac_actor_loss": "alpha",
    "temperature": "logp",
}


@pytest.mark.parametrize("name", DATA)
def test_no_gradient_reaches_what_is_data(name: str) -> None:
    columns = {
        key: column.requires_grad_(column.is_floating_point()) for key, column in BY_NAME[name].columns().items()
    }
    terms = BY_NAME[name].loss(**columns)
    (found,) = torch.autograd.grad(terms.loss.sum(), [columns[DATA[name]]], allow_unused=True)
    assert found is None


def test_partners_of_unpaired_scores_are_data_and_its_metrics_by_hand() -> None:
    chosen, rejected, chosen_partner, rejected_partner = (
        torch.tensor(row, dtype=torch.float64, requires_grad=True)
        for row in ([3.0, -1.0], [0.5, 2.0], [0.5, 2.0], [-1.0, 3.0])
    )
    terms = aot_unpaired(chosen, rejected, chosen_partner, rejected_partner, beta=0.5)
    found = torch.autograd.grad(terms.loss.sum(), [chosen_partner, rejected_partner], allow_unused=True)
    assert found == (None, None)
    metrics = {name: metric.tolist() for name, metric in terms.metrics.items()}
    assert metrics == {
        "preference/accuracy": [1.0, 0.0],
        "preference/margin_nats": [2.5, -3.0],
        "preference/chosen_nats": [3.0, -1.0],
        "preference/rejected_nats": [0.5, 2.0],
        "preference/dominance": [1.0, 0.0],
        "preference/rank_margin_nats": [2.5, -3.0],
    }
    plain = aot_unpaired(chosen, rejected, chosen_partner, rejected_partner, beta=0.5, smoothing=0.0)
    assert torch.equal(terms.loss, plain.loss)


def measured(terms: LossTerms) -> dict[str, list[float]]:
    assert not any(metric.requires_grad for metric in terms.metrics.values())
    return {name: metric.tolist() for name, metric in terms.metrics.items()}


def test_the_metrics_of_losses_without_a_case() -> None:
    logp = torch.tensor([-0.5, -2.0], requires_grad=True)
    assert measured(behaviour_cloning(logp)) == {"policy/nll_nats": [0.5, 2.0]}
    slope = torch.tensor([[3.0, 4.0]], requires_grad=True)
    assert measured(gradient_norm_penalty(slope)) == {"discriminator/slope": [5.0]}


def test_shares_are_numbers_that_can_be_averaged() -> None:
    terms = discriminator_loss(torch.tensor([0.5, 0.0, -2.0]), torch.tensor([-0.5, 0.0, 2.0]))
    assert measured(terms) == {
        "discriminator/accuracy_expert": [1.0, 0.0, 0.0],
        "discriminator/accuracy_policy": [1.0, 0.0, 0.0],
    }
    batch, parameters = make_batch(), weight()
    policies = [case.loss(view(batch, parameters, factors(case, batch, parameters))) for case in LOSSES]
    for one in (terms, *policies):
        assert all(metric.is_floating_point() for metric in one.metrics.values())


def test_the_likelihood_of_an_ensemble_by_hand() -> None:
    """Two members, three rows, one number: gaps 1, 2 of variances 1 and 4 in the first row."""
    mean = torch.tensor([[[0.0], [1.0], [5.0]], [[-1.0], [1.0], [5.0]]], dtype=torch.float64, requires_grad=True)
    log_variance = torch.tensor([1.0, 4.0], dtype=torch.float64).log()[:, None, None].expand(2, 3, 1)
    log_variance = log_variance.clone().requires_grad_()
    target = torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64)[None, :, None].expand(2, 3, 1)
    terms = gaussian_nll(mean, log_variance, target)
    half = 0.5 * torch.tensor(4.0).log().item()
    torch.testing.assert_close(
        terms.loss.tolist(), [0.5 * 1 + 0.5 * 4 / 4 + half, half, 8.0 + 2.0 + half], rtol=1e-6, atol=0
    )
    found = measured(terms)
    assert found["model/squared_error"] == [2.5, 0.0, 16.0]
    assert found["model/log_variance_nats"] == pytest.approx([half] * 3)
    wide = gaussian_nll(*(column.expand(2, 3, 4) for column in (mean, log_variance, target)))
    torch.testing.assert_close(wide.loss, 4 * terms.loss)
    assert measured(wide) == found
