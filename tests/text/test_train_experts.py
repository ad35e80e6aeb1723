"""Training of a mixture of experts: replayed routes, their coverage, and a load that no split of a batch changes."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from plain_episodes import plain_episodes
from pydantic import ValidationError

from hone.core.conversation import TranscriptBuilder, build_columns
from hone.core.credit import Credits
from hone.core.episodes import (
    Episodes,
    concatenate,
    concatenate_routing,
    is_recorded,
    pack_episodes,
    unpack_episodes,
    unrecorded,
)
from hone.core.errors import ConfigError, DivergedError
from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.core.reduction import ONE_PROCESS
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.learner.config import LearnerConfig
from hone.learner.share import split_by_token_budget
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig, ExpertTrainingConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.text.balance import ExpertBalance, missing_routes
from hone.text.evaluate.open_policy import ModelSource, open_policy, open_tokenizer
from hone.text.learners import token_learner
from hone.text.loss import TokenLoss, TokenLossSpec
from hone.text.rollout_config import RolloutConfig
from hone.text.rows import TokenLayout

TOKENIZER = character_tokenizer(["abcdefgh"])


def policy(*, dtype: str = "float32", seed: int = 0, **training) -> TokenPolicy:
    config = ModelConfig(
        family="qwen3_moe", vocab_size=TOKENIZER.size, hidden_size=16, intermediate_size=12, layers=2, heads=2,
        kv_heads=1, head_dim=8, experts=ExpertsConfig(count=5, per_token=2, width=12),
    )  # fmt: skip
    return TokenPolicy(
        new_model(config, seed=seed, dtype=dtype), TOKENIZER, expert_training=ExpertTrainingConfig(**training)
    )


def rollout(actor: TokenPolicy) -> Episodes:
    """Four groups of three answers by the torch engine, with their routes."""
    runner = TorchRunner(actor.decoder, vocab_used=TOKENIZER.size, page_tokens=16)
    engine = EmbeddedEngine(
        RunnerChoice(runner=runner, own_weights=False),
        TokenizerRules(eos=(0,), vocab=TOKENIZER.size, decode=None),
        limits=SchedulerLimits(slots=4, pages=40, page_tokens=16, sequence_tokens=64),
        seed=0,
    )
    rng, asked = np.random.default_rng(0), []
    for number in range(4):
        prompt = rng.integers(1, TOKENIZER.size, size=3 + number).astype(np.int32)
        asked.append(Request(id=f"{number}", prompt=prompt, samples=3, sampling=SamplingParams(max_tokens=9)))
    done = {(one.request_id, one.sample_index): one for one in generate(engine, asked)}
    builders = []
    for request in asked:
        for sample in range(3):
            builders.append(TranscriptBuilder(prompt=request.prompt))
            builders[-1].append_sampled(done[request.id, sample])
    columns, count = build_columns(builders), len(builders)
    return plain_episodes(
        columns.offsets,
        seen=columns.transcript,
        chosen=columns.chosen,
        logp=columns.logp,
        version=columns.version,
        group=np.arange(count) // 3,
        score=rng.normal(size=count),
    )


def credits_of(episodes: Episodes) -> Credits:
    advantage = np.repeat(episodes.score - episodes.score.mean(), episodes.lengths).astype(np.float32)
    advantage[np.repeat(np.arange(len(episodes)) % 4 == 1, episodes.lengths)] = 0  # these would be skipped
    return Credits(advantage=advantage)


def loss_spec() -> TokenLossSpec:
    def objective(view):
        return clipped_surrogate(view.logp, view.denominator_logp, view.advantage)

    return TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=True)


def gradients(actor, episodes, *, budget: int = 1 << 20, shared: bool = True) -> dict[str, torch.Tensor]:
    """Gradient of one optimizer step, with the load's loss where the policy has it."""
    loss = TokenLoss(loss=loss_spec(), denominator="recomputed", micro_batch_tokens=budget)
    layout = TokenLayout(scheme=token_mean, skip_zero_advantage=True, share_prefixes=shared)
    rows = loss.layout(layout, actor)(episodes, credits_of(episodes)).weighted()
    balance = ExpertBalance(actor.expert_training, budget)
    rows = balance.prepare(None)(actor, rows, 0, ONE_PROCESS)
    actor.zero_grad()
    for piece in split_by_token_budget(rows.sizes(), budget):
        batch = rows.take(piece).tensors()
        balance.objective(loss.objective)(actor, batch).weighted_sum(batch.weight).backward()
    return {name: parameter.grad.clone() for name, parameter in actor.named_parameters()}


def test_an_episode_has_the_routes_of_all_tokens_but_the_last():
    episodes = rollout(policy())
    seen = episodes.transcript
    assert seen.routing.shape == (len(seen.tokens), 2, 2)
    last = np.zeros(len(seen.tokens), np.bool_)
    last[seen.offsets[1:] - 1] = True
    assert np.array_equal(is_recorded(seen.routing).all(axis=1), ~last)


def test_routes_are_taken_joined_and_saved_with_their_tokens():
    episodes = rollout(policy())
    halves = [episodes.take(np.arange(0, 5)), episodes.take(np.arange(5, 12))]
    for other in (concatenate(halves), unpack_episodes(pack_episodes(episodes))):
        assert np.array_equal(other.transcript.routing, episodes.transcript.routing)
    few = episodes.transcript.routing[:3]
    joined = concatenate_routing([few, None, few], [3, 2, 3])
    assert np.array_equal(joined, np.concatenate([few, unrecorded(few, 2), few]))
    assert concatenate_routing([None, None], [1, 2]) is None


@pytest.mark.parametrize("shared", [False, True])
def test_replay_in_float32_on_shared_weights_changes_no_bit(shared):
    actor = policy()
    episodes = rollout(actor)
    replayed = gradients(actor, episodes, shared=shared)
    free = gradients(policy(replay=False), episodes, shared=shared)
    assert all(torch.equal(replayed[name], free[name]) for name in replayed)


def test_replay_follows_the_record_and_its_gradient_reaches_the_router():
    actor = policy()
    episodes = rollout(actor)
    with torch.no_grad():
        for layer in actor.decoder.layers:
            layer.router.weight.neg_()  # the trainer would choose others
    replayed, free = gradients(actor, episodes), None
    actor.expert_training = ExpertTrainingConfig(replay=False)
    free = gradients(actor, episodes)
    assert not torch.allclose(replayed["decoder.layers.0.down.weight"], free["decoder.layers.0.down.weight"])
    assert all(replayed[f"decoder.layers.{number}.router.weight"].abs().sum() > 0 for number in range(2))


def test_a_record_with_a_hole_is_refused_and_one_that_no_decision_reads_is_not():
    actor = policy()
    episodes = rollout(actor)
    routing = episodes.transcript.routing.copy()
    routing[episodes.transcript.offsets[3], 1] = 255
    holed = replace(episodes, seen=replace(episodes.transcript, routing=routing))
    with pytest.raises(DivergedError, match=r"recorded the experts of 0\.99\d* of the .*model.experts.replay = false"):
        gradients(actor, holed)
    actor.expert_training = ExpertTrainingConfig(replay=False)
    gradients(actor, holed)


@pytest.mark.parametrize("recorded", [True, False])
def test_no_split_or_sharing_of_a_batch_changes_the_gradient_with_the_loss_of_the_load(recorded):
    actor = policy(dtype="float64", balance={"loss": 0.5})
    episodes = rollout(policy())
    if not recorded:
        episodes = replace(episodes, seen=replace(episodes.transcript, routing=None))
    whole = gradients(actor, episodes, shared=False)
    plain = gradients(TokenPolicy(actor.decoder, TOKENIZER), episodes, shared=False)
    assert not torch.allclose(whole["decoder.layers.0.router.weight"], plain["decoder.layers.0.router.weight"])
    for shared, budget in ((True, 1 << 20), (True, 20), (False, 60)):
        for name, found in gradients(actor, episodes, budget=budget, shared=shared).items():
            torch.testing.assert_close(found, whole[name], rtol=1e-6, atol=1e-9)


def test_each_step_tells_its_load_and_moves_the_biases():
    actor = policy(balance={"bias": 0.125})
    actor.decoder.add_selection_bias()
    episodes = rollout(actor)
    loss = TokenLoss(loss=loss_spec(), denominator="self", micro_batch_tokens=20)
    learner = token_learner(
        LearnerConfig(lr=1e-3, micro_batch_tokens=20), actor, layout=loss.layout(TokenLayout(scheme=token_mean), actor),
        objective=loss.objective, seed=0, steps=1,
    )  # fmt: skip
    metrics = learner.update(episodes, credits_of(episodes))
    seen = episodes.transcript
    for number, layer in enumerate(actor.decoder.layers):
        load = np.bincount(seen.routing[seen.at - 1, number].reshape(-1), minlength=5)
        expected = 0.125 * np.sign(load.mean() - load)
        assert np.array_equal(layer.selection_bias.numpy(), expected)
    loads = np.stack([np.bincount(seen.routing[seen.at - 1, n].reshape(-1), minlength=5) for n in range(2)])
    assert metrics["moe/load_max"] == pytest.approx((loads / loads.mean(axis=1, keepdims=True)).max())
    assert metrics["moe/dead"] == (loads == 0).sum()


def test_later_turns_keep_the_routes_of_earlier_ones():
    first = np.zeros((4, 1, 1), np.uint8)
    later = np.ones((8, 1, 1), np.uint8)
    answer = partial(_completion, tokens=3)
    builder = TranscriptBuilder(prompt=np.array([1, 2], np.int32))
    builder.append_sampled(answer(routing=first))  # 2 + 3 - 1 tokens were read
    builder.append_environment(np.array([5], np.int32))
    builder.append_sampled(answer(routing=later))  # 6 + 3 - 1
    routing = build_columns([builder]).transcript.routing
    assert routing[:, 0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 255]


def _completion(*, tokens: int, routing: np.ndarray):
    zeros = np.zeros(tokens, np.float32)
    return Completion(
        request_id="a", sample_index=0, tokens=np.arange(tokens, dtype=np.int32), logp=zeros, sampled_logp=zeros,
        version=np.zeros(tokens, np.int32), finish_reason="eos", routing=routing,
    )  # fmt: skip


NEW = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8}
EXPERTS = {"count": 4, "per_token": 2, "width": 8}
BAD = [
    (
        {"new": NEW | {"family": "qwen3_moe", "experts": EXPERTS | {"per_token": 5}}},
        "per_token = 5 is above experts.count = 4",
    ),
    ({"new": NEW | {"experts": EXPERTS}}, "family = 'qwen3' has no experts; families with experts: qwen3_moe"),
    ({"new": NEW | {"family": "olmoe"}}, "family = 'olmoe' needs a table experts"),
    (
        {"new": NEW, "experts": {"replay": False}},
        "model.experts trains a mixture of experts; model.new is a dense qwen3",
    ),
    ({"path": "x", "experts": {"balance": {"bias": 0.001}}, "lora": {"rank": 1}}, "balance.bias with model.lora"),
    ({"path": "x", "experts": {"balance": {"loss": 0.0}}}, "greater than 0"),
]


@pytest.mark.parametrize(("given", "told"), BAD)
def test_bad_settings_are_told_before_a_model_is_loaded(given, told):
    with pytest.raises(ValidationError, match=re.escape(told)):
        ModelSource.model_validate(given)


def test_settings_for_experts_on_a_dense_folder_are_refused(tmp_path):
    dense = ModelConfig(
        family="qwen3", vocab_size=TOKENIZER.size, hidden_size=16, intermediate_size=12, layers=1, heads=2
    )
    TokenPolicy(new_model(dense, seed=0), TOKENIZER).save(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.experts trains a mixture of experts; .* holds a dense qwen3"):
        open_tokenizer(ModelSource(path=str(tmp_path), experts=ExpertTrainingConfig()))


def test_a_policy_with_biases_is_saved_and_loaded_with_them(tmp_path):
    source = ModelSource.model_validate(
        {"new": NEW | {"family": "qwen3_moe", "experts": EXPERTS}, "experts": {"balance": {"bias": 0.001}}}
    )
    first = open_policy(source, seed=0, device="cpu", temperature=1.0)
    first.decoder.layers[0].selection_bias.add_(0.25)
    first.save(tmp_path)
    loaded = open_policy(ModelSource(path=str(tmp_path)), seed=0, device="cpu", temperature=1.0)
    assert loaded.decoder.layers[0].selection_bias.tolist() == [0.25] * 4
    again = open_policy(source, seed=0, device="cpu", temperature=1.0)
    again.load(tmp_path)
    assert again.decoder.layers[0].selection_bias.tolist() == [0.25] * 4


def test_a_server_without_routes_is_told():
    server = RolloutConfig.model_validate(
        {"prompts_per_step": 1, "samples_per_prompt": 2, "max_tokens": 4,
         "runner": {"kind": "vllm", "url": "http://127.0.0.1:1"}}
    )  # fmt: skip
    assert "no routes are replayed" in missing_routes(policy(), server)[0]
    assert missing_routes(policy(), server.model_copy(update={"runner": "auto"})) == []
