"""Work and speed: operations counted from shapes, against torch's own counter; a rate; what is said at the end."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from manual_clock import ManualClock, TickingClock
from torch.utils.flop_counter import FlopCounterMode

from hone.core.clock import SystemClock
from hone.core.credit import Credits
from hone.core.errors import ResourceError
from hone.learner.config import LearnerConfig
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.packing import pack_rows
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.run.run import closing_lines
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import open_metrics
from hone.run.store.records import SPEED, RecordFile
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy
from hone.text.flops import forward_flops, layer_parameters, matmul_rate, token_compute_cost
from hone.text.learners import token_learner
from hone.text.rows import TokenLayout
from hone.text.tasks.world import supervised_episodes

CONFIG = ModelConfig(
    family="llama", vocab_size=30, hidden_size=48, intermediate_size=80, layers=3, heads=4, kv_heads=2, head_dim=16
)


@pytest.fixture(scope="module")
def policy():
    tiny = NewModelConfig(
        hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, intermediate_size=24, alphabet="0123"
    )
    return open_policy(ModelSource(new=tiny, compute="float32"), seed=1, device="cpu", temperature=1.0)


def test_weights_that_tokens_are_multiplied_by():
    model = new_model(CONFIG, seed=1)
    matrices = [one.numel() for name, one in model.named_parameters() if one.ndim == 2 and "embedding" not in name]
    assert layer_parameters(CONFIG) == sum(matrices)


def test_operations_by_hand():
    """P = 3 x (48 x (64 + 2 x 32) + 64 x 48 + 3 x 48 x 80) = 62,208."""
    found = forward_flops(CONFIG, tokens=10, logits=4, pairs=torch.tensor(55.0))
    assert float(found) == 2 * 62_208 * 10 + 2 * 48 * 30 * 4 + 4 * 3 * 4 * 16 * 55


def test_torch_counts_the_same(monkeypatch):
    """Its counter sees the products of one row, forward and backward; attention over the whole square."""
    monkeypatch.setenv("HONE_NATIVE", "0")  # it counts torch's own operations only
    model, length = new_model(CONFIG, seed=1), 12
    packed = pack_rows([np.arange(1, 1 + length, dtype=np.int32)])
    with FlopCounterMode(display=False) as counter:
        model.logits(model.hidden(packed)).sum().backward()
    ours = 3 * forward_flops(CONFIG, tokens=length, logits=length, pairs=torch.tensor(float(length**2)))
    assert counter.get_total_flops() == pytest.approx(float(ours), rel=0.02)


def episodes_of(lengths, asked=3):
    return supervised_episodes([np.arange(asked, dtype=np.int32)] * len(lengths),
                      [np.arange(n, dtype=np.int32) % 4 for n in lengths])  # fmt: skip


def rows_of(episodes):
    return TokenLayout(scheme=token_mean, share_prefixes=False)(episodes, Credits(advantage=episodes.reward))


def test_a_token_is_paired_with_what_it_sees(policy):
    """Two texts of 3 + 4 and 3 + 2 tokens, the last of each not read: 6 and 4 tokens, 21 and 10 pairs."""
    batch = rows_of(episodes_of([4, 2])).tensors()
    found = token_compute_cost(policy, batch, epochs=1)
    expected = 3 * forward_flops(policy.decoder.config, tokens=10, logits=6, pairs=torch.tensor(31.0))
    assert found.tokens == 10 and float(found.flops) == float(expected)


def test_forward_passes_that_were_made_before_are_shared_by_the_epochs(policy):
    batch = rows_of(episodes_of([4, 2])).tensors()
    plain = token_compute_cost(policy, batch, epochs=2)
    more = token_compute_cost(
        policy,
        replace(batch, ref_logp=batch.behaviour_logp, old_logp=batch.behaviour_logp, token_factor=batch.behaviour_logp),
        epochs=2,
    )
    assert more.tokens == 3 * plain.tokens, "one half each of two passes for both epochs, and one for this step"
    assert float(more.flops) == pytest.approx(float(plain.flops) * 5 / 3)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_learner_tells_its_tokens_however_they_are_cut(policy, budget):
    config = LearnerConfig(lr=1e-3, epochs=2, minibatches=2, micro_batch_tokens=budget)

    def objective(policy, batch):
        look = policy.token_logprobs(batch.packed, batch.at, batch.chosen)
        return LossTerms(loss=-look.logp, compute_metrics=dict)

    episodes = episodes_of([4, 2, 9, 1])
    learner = token_learner(
        config,
        policy,
        layout=lambda episodes, credits: rows_of(episodes),
        objective=objective,
        seed=1,
        steps=1,
    )
    metrics = learner.update(episodes, Credits(advantage=episodes.reward))
    pairs = sum((2 + n) * (3 + n) / 2 for n in (4, 2, 9, 1))
    once = forward_flops(policy.decoder.config, tokens=24, logits=16, pairs=torch.tensor(pairs))
    assert metrics["learner/tokens"] == 48
    assert metrics["learner/flops"] == pytest.approx(6 * float(once))


def test_the_machines_rate(policy):
    clock = TickingClock()
    found = matmul_rate(policy, clock, seconds_s=0.0)
    assert (found.dtype, found.device, found.threads) == ("float32", "cpu", torch.get_num_threads())
    assert found.matmul_flops_per_s == pytest.approx(2 * 1024**3 / 0.5), "the product of one tick"
    assert matmul_rate(policy, clock, seconds_s=0.0) is found, "measured again in one process"


@pytest.fixture
def folder(tmp_path):
    facts = RunMetadata(hone_version="0", dataset_fingerprint=None, recipe="r", machine="m", versions={})
    with create_run(tmp_path, "run", config={}, metadata=facts, clock=ManualClock()) as folder:
        writer = open_metrics(folder.metrics_path).writer
        writer.append(1, {"time/update_s": 3.0, "time/collect_s": 1.0, "time/step_s": 4.0, "learner/flops": 3e9})
        writer.close()
        yield folder


def test_what_is_said_at_the_end(policy, folder):
    slowest, speed = closing_lines(folder, partial(matmul_rate, policy), SystemClock())
    assert slowest.startswith("The bottleneck is the learner's update (update): 75% of a step, 3.0 s of 4.0 s")
    assert speed.startswith("updates computed at 1 GFLOP/s, ") and "multiplies float32 matrices" in speed
    rate = SPEED.read(folder.path)
    assert rate is not None and rate.matmul_flops_per_s > 0


def test_a_policy_that_is_no_language_model_has_no_speed(folder):
    assert len(closing_lines(folder, None, SystemClock())) == 1
    assert SPEED.read(folder.path) is None


def test_a_finished_run_does_not_fail_for_want_of_a_figure(policy, folder, monkeypatch):
    def full(*given):
        raise ResourceError("the disk is full")

    monkeypatch.setattr(RecordFile, "write", full)
    assert closing_lines(folder, partial(matmul_rate, policy), SystemClock()) == []
    assert "no figures of speed: the disk is full" in folder.log_path.read_text()
