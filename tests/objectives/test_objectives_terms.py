"""Sums and products of loss terms, with the batch's weights and with their own."""

import pytest
import torch
from torch import Tensor

from hone.objectives.terms import LossTerms, add_terms, scale_terms

BATCH = torch.tensor([0.1, 0.2, 0.7])
PAIR = torch.tensor([0.5, 0.25])


def decisions(*values: float, name: str = "a") -> LossTerms:
    loss = torch.tensor(values)
    return LossTerms(loss=loss, compute_metrics=lambda: {name: loss})


def pairs(*values: float, weight: Tensor = PAIR) -> LossTerms:
    loss = torch.tensor(values)
    return LossTerms(loss=loss, compute_metrics=lambda: {"pair": loss}, weight=weight)


def test_one_term_is_the_plain_weighted_sum_to_the_bit() -> None:
    terms = decisions(1.1, -2.3, 0.7)
    assert torch.equal(terms.weighted_sum(BATCH), (terms.loss * BATCH).sum())
    both = add_terms(terms, decisions(4.0, 5.0, 6.0, name="b"), weight=0.3)
    assert both.extra == ()
    assert torch.equal(both.loss, torch.add(terms.loss, torch.tensor([4.0, 5.0, 6.0]), alpha=0.3))
    assert set(both.metrics) == {"a", "b"}


def test_a_term_with_its_own_weights_is_a_further_term_of_the_sum() -> None:
    terms = add_terms(decisions(1.0, 2.0, 3.0), pairs(10.0, 20.0), weight=2.0)
    assert float(terms.weighted_sum(BATCH)) == pytest.approx(0.1 + 0.4 + 2.1 + 2.0 * (5.0 + 5.0))
    assert set(terms.metrics) == {"a", "pair"}
    assert terms.metrics["pair"].tolist() == [10.0, 20.0], "metrics are not scaled"


def test_terms_with_the_same_weights_are_one_term() -> None:
    both = add_terms(pairs(10.0, 20.0), pairs(1.0, 2.0), weight=3.0)
    assert both.extra == ()
    assert both.weight is PAIR
    assert both.loss.tolist() == [13.0, 26.0]


@pytest.mark.parametrize("nested", [False, True])
def test_a_sum_does_not_depend_on_how_it_is_nested(nested: bool) -> None:
    first, second, third = pairs(10.0, 20.0), decisions(1.0, 2.0, 3.0), pairs(7.0, weight=torch.tensor([2.0]))
    if nested:
        terms = add_terms(first, add_terms(second, third, weight=0.5), weight=0.1)
    else:
        terms = add_terms(add_terms(first, second, weight=0.1), third, weight=0.05)
    assert float(terms.weighted_sum(BATCH)) == pytest.approx(10.0 + 0.1 * 2.6 + 0.05 * 14.0)


def test_a_factor_concerns_the_first_term() -> None:
    terms = scale_terms(add_terms(decisions(1.0, 2.0, 3.0), pairs(10.0, 20.0)), torch.tensor([0.0, 1.0, 0.0]))
    assert float(terms.weighted_sum(BATCH)) == pytest.approx(0.4 + 10.0)


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"weights \(1,\) of a loss \(2,\)"):
        pairs(10.0, 20.0, weight=torch.tensor([1.0])).weighted_sum(BATCH)
