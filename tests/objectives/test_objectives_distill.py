"""Distillation: divergences by hand, their limits, what is lost with a vocabulary's tail."""

from collections.abc import Callable
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.core.errors import ConfigError
from hone.objectives.distill import (
    distillation_advantage,
    forward_kl,
    generalised_jsd,
    renormalised,
    reverse_kl,
    softened,
    with_tail,
)

SIZE = 7
seeds = st.integers(0, 10_000)


def drawn(seed: int, rows: int = 1) -> Tensor:
    """Log-probabilities `[rows, SIZE]`."""
    generator = torch.Generator().manual_seed(seed)
    return softened(2 * torch.randn(rows, SIZE, generator=generator, dtype=torch.float64))


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), leaf, retain_graph=True)[0]


def test_by_hand() -> None:
    """Teacher (1/2, 1/2), student (1/4, 3/4)."""
    teacher, student = logs(0.5, 0.5), logs(0.25, 0.75)
    assert forward_kl(student, teacher).loss.item() == pytest.approx(0.5 * log(2) + 0.5 * log(2 / 3))
    assert reverse_kl(student, teacher).loss.item() == pytest.approx(0.25 * log(0.5) + 0.75 * log(1.5))
    middle = (0.375, 0.625)
    expected = 0.5 * (0.5 * log(0.5 / middle[0]) + 0.5 * log(0.5 / middle[1]))
    expected += 0.5 * (0.25 * log(0.25 / middle[0]) + 0.75 * log(0.75 / middle[1]))
    assert generalised_jsd(student, teacher).loss.item() == pytest.approx(expected)


@given(seeds)
def test_divergences_are_0_at_the_teacher_only(seed: int) -> None:
    teacher, student = drawn(seed), drawn(seed + 1)
    for loss in (forward_kl, reverse_kl, generalised_jsd):
        assert loss(teacher, teacher).loss.item() == pytest.approx(0.0, abs=1e-12)
        assert loss(student, teacher).loss.item() > 0
    assert generalised_jsd(student, teacher).loss.item() <= log(2)


@given(seeds)
def test_the_generalised_jsd_tends_to_both_kls(seed: int) -> None:
    """Divided by the mix it is the forward KL at 0, by 1 - mix the reverse KL at 1; its value vanishes at both."""
    teacher = drawn(seed)
    logits = drawn(seed + 1).requires_grad_()
    leaf = softened(logits)
    for mix, share, limit in ((1e-8, 1e-8, forward_kl), (1 - 1e-8, 1e-8, reverse_kl)):
        jsd, kl = generalised_jsd(leaf, teacher, mixture=mix).loss / share, limit(leaf, teacher).loss
        torch.testing.assert_close(jsd, kl, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(gradient(jsd, logits), gradient(kl, logits), rtol=1e-3, atol=1e-4)


@given(seeds, st.floats(0.05, 0.95))
def test_swapping_teacher_and_student_swaps_the_mix(seed: int, mix: float) -> None:
    one, other = drawn(seed), drawn(seed + 1)
    torch.testing.assert_close(
        generalised_jsd(one, other, mixture=mix).loss, generalised_jsd(other, one, mixture=1 - mix).loss
    )


@pytest.mark.parametrize("mix", [0.0, 1.0, -0.5, 2.0])
def test_the_ends_have_their_own_names(mix: float) -> None:
    with pytest.raises(ConfigError, match="forward_kl for 0, reverse_kl for 1"):
        generalised_jsd(drawn(0), drawn(1), mixture=mix)


def test_what_cannot_be_written_is_not_nan() -> None:
    """Entries of probability 0 on either side or both: finite values and gradients, and 0 log 0 = 0."""
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]], dtype=torch.float64, requires_grad=True)
    teacher = softened(torch.tensor([[0.5, -torch.inf, 0.0, -torch.inf]], dtype=torch.float64))
    for loss in (forward_kl, reverse_kl, generalised_jsd):
        value = loss(softened(logits), teacher).loss
        assert torch.isfinite(value).all()
        assert torch.isfinite(gradient(value, logits)).all()
    same = softened(logits)
    assert forward_kl(same, same.detach()).loss.item() == 0.0
    # Of two outcomes, the teacher gives one the student cannot write: half of it at 100 nats.
    sure = torch.tensor([[0.0, -torch.inf]], dtype=torch.float64)
    assert forward_kl(sure, logs(0.5, 0.5)).loss.item() == pytest.approx(log(0.5) + 50.0)


def test_temperature_divides_both_and_nothing_multiplies() -> None:
    logits = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(softened(logits, temperature=2.0), softened(logits / 2.0))
    assert softened(logits.bfloat16()).dtype == torch.float32


@given(seeds)
def test_a_tail_bounds_the_divergence_from_below(seed: int) -> None:
    teacher, student = drawn(seed, 4), drawn(seed + 1, 4)
    ids = teacher.topk(3, dim=1).indices
    kept = with_tail(teacher.gather(1, ids)), with_tail(student.gather(1, ids))
    torch.testing.assert_close(kept[0].exp().sum(1), torch.ones(4, dtype=torch.float64))
    for loss in (forward_kl, reverse_kl, generalised_jsd):
        bound = loss(kept[1], kept[0]).loss
        assert (bound >= -1e-12).all()
        assert (bound <= loss(student, teacher).loss + 1e-12).all()
    everything = with_tail(teacher[:, :-1])
    torch.testing.assert_close(everything, teacher)


def top_two(loss: Callable[[Tensor, Tensor], Tensor], student: Tensor, teacher: Tensor) -> Tensor:
    """Gradient of a loss on the first two entries, with respect to the student's logits."""
    logits = student.log().requires_grad_()
    return gradient(loss(softened(logits)[:, :2], teacher[:, :2].log()), logits)


def test_where_each_top_k_form_ends() -> None:
    """The truncated sum pushes all of the tail away, to the renormalised teacher; the tail form rests at the teacher;
    the renormalised one wherever the proportions of the top are right."""
    teacher = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]], dtype=torch.float64)
    zero = torch.zeros_like(teacher)
    slope = top_two(lambda s, t: forward_kl(s, t).loss, teacher, teacher)
    # d/dz of -sum_top p log q = (sum_top p) q - p on the top: at q = p still not at rest
    torch.testing.assert_close(slope, 0.7 * teacher - torch.where(torch.arange(5) < 2, teacher, 0.0))
    sharpened = torch.tensor([[5 / 7, 2 / 7, 1e-12, 1e-12, 1e-12]], dtype=torch.float64)
    slope = top_two(lambda s, t: forward_kl(s, t).loss, sharpened, teacher)
    torch.testing.assert_close(slope, zero, rtol=0, atol=1e-10)
    slope = top_two(lambda s, t: forward_kl(with_tail(s), with_tail(t)).loss, teacher, teacher)
    torch.testing.assert_close(slope, zero, rtol=0, atol=1e-12)
    elsewhere = torch.tensor([[0.05, 0.02, 0.9, 0.02, 0.01]], dtype=torch.float64)
    slope = top_two(lambda s, t: forward_kl(renormalised(s), renormalised(t)).loss, elsewhere, teacher)
    torch.testing.assert_close(slope, zero, rtol=0, atol=1e-12)


def test_the_truncated_sum_can_be_negative() -> None:
    assert forward_kl(logs(0.9), logs(0.5)).loss.item() == pytest.approx(0.5 * log(0.5 / 0.9))


def test_the_advantage_by_hand() -> None:
    student = torch.tensor([-1.0, -2.0], requires_grad=True)
    found = distillation_advantage(student, torch.tensor([-3.0, -0.5]), coefficient=0.5)
    assert found.tolist() == [-1.0, 0.75]
    assert not found.requires_grad


@pytest.mark.parametrize("seed", range(4))
def test_its_policy_gradient_is_that_of_the_reverse_kl(seed: int) -> None:
    """Over every token: the sum of q * A * grad log q is minus the gradient of KL(q || p); k1 differentiated is 0."""
    teacher, logits = drawn(seed)[0], drawn(seed + 50)[0].requires_grad_()
    logq = torch.log_softmax(logits, dim=0)
    acted = logq.detach().exp()
    advantage = distillation_advantage(logq, teacher)
    surrogate = gradient(-(acted * advantage * logq), logits)
    exact = gradient(reverse_kl(torch.log_softmax(logits, dim=0)[None], teacher[None]).loss, logits)
    torch.testing.assert_close(surrogate, exact)
    logq = torch.log_softmax(logits, dim=0)
    naive = gradient(acted * (logq - teacher), logits)
    torch.testing.assert_close(naive, torch.zeros(SIZE, dtype=torch.float64))
