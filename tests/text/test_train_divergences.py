"""Distillation by divergences: full distributions by hand, top k with the rest, gradients, and students that learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_runs import job_of, lay_out, scores_of, settings
from torch import Tensor

from hone.certify.check import build_certificate
from hone.certify.job import job_gradient_probes
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.ragged import owner_of
from hone.models.language.token_policy import TokenPolicy
from hone.models.packing import pack_rows
from hone.objectives.weights import token_mean
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.text.divergences import ForwardKl, JensenShannon, ReverseKl, divergence_loss
from hone.text.loss import TokenLoss
from hone.text.rows import TokenLayout

KINDS: dict[str, ForwardKl | ReverseKl | JensenShannon] = {
    "forward_kl": ForwardKl(kind="forward_kl"),
    "reverse_kl": ReverseKl(kind="reverse_kl"),
    "jsd": JensenShannon(kind="jsd", mixture=0.3),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def saved_teacher(folder: Path, *, steps: int) -> TrainingJob[Any]:
    teacher = job_of("grpo", settings("grpo", steps=steps, full=False) | {"seed": 3})
    scores_of(teacher, steps=steps)
    (folder / "teacher").mkdir()
    teacher.save_policy(folder / "teacher")
    return teacher


def tables(divergence: dict[str, Any], steps: int = 1) -> dict[str, Any]:
    return settings("on_policy_distillation", steps=steps, full=False, algorithm={"divergence": divergence})


def log_table(policy: TokenPolicy, episodes: Episodes) -> Tensor:
    """`[N, vocabulary]` log-probabilities before each decision, one pass for each."""
    seen, found = episodes.transcript, []
    for number, at in enumerate(seen.at.tolist()):
        start = int(seen.offsets[owner_of(episodes.offsets)[number]])
        hidden = policy.decoder.hidden(pack_rows([seen.tokens[start:at]]))[-1:]
        found.append(torch.log_softmax(policy.decoder.logits(hidden)[:, : policy.vocab_size_used], dim=-1))
    return torch.cat(found)


def by_hand(kind: str, q: Tensor, p: Tensor) -> Tensor:
    """Student's q and teacher's p, probabilities `[N, vocabulary]`."""
    if kind == "forward_kl":
        return (p * (p / q).log()).sum(1)
    if kind == "reverse_kl":
        return (q * (q / p).log()).sum(1)
    m = 0.3 * p + 0.7 * q
    return 0.3 * (p * (p / m).log()).sum(1) + 0.7 * (q * (q / m).log()).sum(1)


def loss_and_gradient(
    kind: str, student: TokenPolicy, teacher: TokenPolicy, episodes: Episodes, top_k: int, budget: int
) -> tuple[Tensor, Tensor]:
    """`[N]` losses and the gradient of their mean, cut up under `budget` tokens."""
    found = KINDS[kind].model_copy(update={"top_k": top_k})
    spec = divergence_loss(found, student, teacher, token_mean, weight=2.0)
    loss = TokenLoss(loss=spec, denominator="self", micro_batch_tokens=budget)
    rows = loss.layout(TokenLayout(scheme=token_mean), student)(
        episodes, Credits(advantage=np.zeros(episodes.decisions, np.float32))
    )
    student.zero_grad(set_to_none=False)
    terms = []
    for number in range(len(rows)):
        batch = rows.weighted().take(np.array([number])).tensors()
        one = loss.objective(student, batch)
        one.weighted_sum(batch.weight).backward()
        terms.append(one.loss.detach())
    return torch.cat(terms), torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_whole_vocabulary_it_is_the_divergence(kind: str, place: Path) -> None:
    teacher: TokenPolicy = saved_teacher(place, steps=2).recipe.learner.policy
    job = job_of("on_policy_distillation", tables({"kind": kind}))
    student: TokenPolicy = job.recipe.learner.policy
    job.recipe.source.publish(student)
    episodes = job.recipe.source.collect().take(np.arange(0, 32, 5))
    q, p = log_table(student, episodes), log_table(teacher, episodes).detach()
    expected = 2.0 * by_hand(kind, q.exp(), p.exp())
    student.zero_grad(set_to_none=False)
    expected.mean().backward()
    wanted = torch.cat([one.grad.flatten().clone() for one in student.parameters() if one.grad is not None])
    for top_k, budget in ((10_000, 1 << 40), (student.vocab_size_used, 5)):
        loss, gradient = loss_and_gradient(kind, student, teacher, episodes, top_k, budget)
        torch.testing.assert_close(loss, expected.detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=1e-3)
    part, _ = loss_and_gradient(kind, student, teacher, episodes, 3, 1 << 40)
    assert bool((part <= expected.detach() + 1e-5).all()), "tokens taken together can only look more alike"
    assert float(part.min()) > -1e-6
    assert float(part.mean()) > 0.3 * float(expected.detach().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_the_student_comes_to_the_teacher(kind: str, place: Path) -> None:
    teacher: TokenPolicy = saved_teacher(place, steps=12).recipe.learner.policy
    job = job_of("on_policy_distillation", tables({"kind": kind, "top_k": 4}, steps=40))
    nats: list[float] = []
    train(job.recipe, steps=40, callback=lambda _s, _e, _c, told: nats.append(told["distill/kl_nats"]))
    assert np.mean(nats[-5:]) < 0.25 * np.mean(nats[:5])
    assert teacher is not job.recipe.learner.policy


def test_its_gradient_does_not_depend_on_the_cut(place: Path) -> None:
    saved_teacher(place, steps=1)
    chosen = tables({"kind": "reverse_kl", "top_k": 3})
    config = load_recipe("on_policy_distillation").config.model_validate(chosen)
    probes = job_gradient_probes(job_of("on_policy_distillation", chosen), config, own_credit=True)
    checks = build_certificate(probes, recipe="any", config_hash="").checks
    assert [check.name for check in checks if not check.passed] == []


def test_a_mixture_without_both_is_refused(place: Path) -> None:
    with pytest.raises(ValueError, match="mixture"):
        load_recipe("on_policy_distillation").config.model_validate(tables({"kind": "jsd", "mixture": 1.0}))
