"""Policies survive the disk to the bit, and damage is named; learners' states are exact, and snapshots stay."""

import json
from pathlib import Path

import numpy as np
import pytest
from bandit_policies import ACTIONS, ARMS, FEATURES, ModuloShield, learnt_model, stacks
from examples import examples
from hypothesis import given
from safetensors.numpy import load_file, save_file

from hone.core.decisions import ActionSet, DecisionTable
from hone.core.errors import DataError
from hone.decide.bandits.greedy import LinUcbPolicy, Ucb1Policy, thompson_policy
from hone.decide.bandits.learning import BanditLearner, PolicyActor
from hone.decide.bandits.models import (
    ArmMeans,
    BetaBernoulliPosterior,
    GaussianPosterior,
    JointLinearPosterior,
    LinearGaussianPosterior,
)
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.saving import (
    KINDS,
    copy_policy,
    describe_policy,
    is_policy_folder,
    load_into,
    load_policy,
    policy_hash,
    save_policy,
)
from hone.decide.bandits.wrappers import EpsilonFloor, Fallback, Shielded

CONTEXT = np.array([0.2, -0.7, 1.1])


@examples(20)
@given(policy=stacks())
def test_a_saved_stack_is_the_same_policy(policy: BanditPolicy, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("policy")
    try:
        digest = save_policy(policy, folder)
    except DataError as error:
        assert "cannot be saved" in str(error)  # a shield is somewhere inside
        return
    again = load_policy(folder)
    assert policy_hash(again) == digest
    assert again.logp(CONTEXT, ACTIONS).tobytes() == policy.logp(CONTEXT, ACTIONS).tobytes()
    assert is_policy_folder(folder)


def test_every_kind_is_saved_and_read(tmp_path: Path) -> None:
    models = [
        ArmMeans(2), BetaBernoulliPosterior(2, alpha=0.1 + 0.2), GaussianPosterior(2), LinearGaussianPosterior(2, 1),
        JointLinearPosterior(1, 2),
    ]  # fmt: skip
    saved = {"model": [], "policy": []}
    for model in models:
        policy = Ucb1Policy(model) if isinstance(model, ArmMeans) else thompson_policy(model)
        save_policy(policy, tmp_path / model.kind)
        again = load_policy(tmp_path / model.kind)
        saved["model"].append(again.contents().parts["model"].kind)
        saved["policy"].append(again.kind)
        assert describe_policy(again)[0] == describe_policy(policy)[0]
    wrappers = {"epsilon_floor", "masked", "clipped", "fallback", "routed"}  # drawn by the stacks above
    rules = {"linucb", "epsilon_greedy", "boltzmann", "squarecb", "target_rate"}  # as well; the last in its own tests
    assert {*saved["model"], *saved["policy"], *wrappers, *rules} == set(KINDS)


def test_damage_is_named(tmp_path: Path) -> None:
    policy = EpsilonFloor(LinUcbPolicy(learnt_model(0), 1.0), 0.1)
    save_policy(policy, tmp_path)
    document = json.loads((tmp_path / "policy.json").read_text(encoding="utf-8"))
    arrays = load_file(tmp_path / "policy.safetensors")

    def refused(message: str, *, arrays: dict = arrays, **changes: object) -> None:
        (tmp_path / "policy.json").write_text(json.dumps({**document, **changes}), encoding="utf-8")
        save_file(arrays, tmp_path / "policy.safetensors")
        with pytest.raises(DataError, match=message):
            load_policy(tmp_path)

    name = "inner.model.coefficients"
    refused("has changed since", arrays={**arrays, name: arrays[name] + 1e-12})
    refused("has changed since", policy={**document["policy"], "settings": {"epsilon": 0.2}})
    refused("has changed since", arrays={key: value for key, value in arrays.items() if key != name})
    refused("holds float32, not float64", arrays={**arrays, name: arrays[name].astype(np.float32)})
    refused(
        "array inner.model.coefficients holds a number that is not finite",
        arrays={**arrays, name: arrays[name] * np.nan},
    )
    refused("format 9; this version of hone reads 2", format=9)
    refused("not the description of a bandit policy", family="network")
    refused("it holds no policy", policy=3)
    (tmp_path / "policy.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"policy.safetensors: cannot read the policy's arrays"):
        load_policy(tmp_path)
    (tmp_path / "policy.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"policy.json: cannot read the policy"):
        load_policy(tmp_path)
    assert not is_policy_folder(tmp_path)


def test_contents_of_another_kind_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = EpsilonFloor(LinUcbPolicy(learnt_model(0), 1.0), 0.1)
    save_policy(policy, tmp_path)
    written = json.loads((tmp_path / "policy.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(
        "hone.decide.bandits.saving._digest", lambda tree, arrays: written["sha256"]
    )  # a forger's hash fits

    def refused(message: str, change) -> None:
        document = json.loads(json.dumps(written))
        change(document["policy"])
        (tmp_path / "policy.json").write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(DataError, match=message):
            load_policy(tmp_path)

    refused("unknown kind 'epsilon_flor'; did you mean epsilon_floor", lambda tree: tree.update(kind="epsilon_flor"))
    refused("epsilon must be above 0", lambda tree: tree["settings"].update(epsilon=0))
    refused("setting 'epsilon' is 'x', not a number", lambda tree: tree["settings"].update(epsilon="x"))
    refused("inner: linucb: part 'model' is absent", lambda tree: tree["parts"]["inner"].update(parts={}))
    refused("linucb without settings or parts", lambda tree: tree["parts"]["inner"].update(settings=None))


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    policy = LinUcbPolicy(learnt_model(0), 1.0)
    with pytest.raises(DataError, match="let the service add the shield"):
        save_policy(Shielded(policy, ModuloShield()), tmp_path)

    class Foreign:
        def logp(self, context, actions):
            return policy.logp(context, actions)

        def logp_rows(self, contexts, actions):
            return policy.logp_rows(contexts, actions)

        def act(self, context, actions, draw_key):
            return policy.act(context, actions, draw_key)

    wrapped = Fallback(Foreign(), policy)
    assert wrapped.act(CONTEXT, ACTIONS, 1 << 100).action == policy.act(CONTEXT, ACTIONS, 1 << 100).action
    with pytest.raises(DataError, match="a Foreign cannot be saved as a part"):
        save_policy(wrapped, tmp_path)


def test_a_learners_state_is_exact_and_a_snapshot_stays() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(20, FEATURES)), rng.integers(0, ARMS, 20), rng.normal(size=20))

    def learner() -> BanditLearner:
        model = LinearGaussianPosterior(ARMS, FEATURES, discount=0.99)
        return BanditLearner(LinUcbPolicy(model, 1.0), model, ACTIONS)

    whole, begun, resumed = learner(), learner(), learner()
    for row in range(20):
        whole.observe(*(part[row : row + 1] for part in rows))
    for row in range(10):
        begun.observe(*(part[row : row + 1] for part in rows))
    snapshot, before = begun.snapshot(), policy_hash(begun.policy)
    resumed.restore(begun.state())
    for row in range(10, 20):
        resumed.observe(*(part[row : row + 1] for part in rows))
    assert policy_hash(resumed.policy) == policy_hash(whole.policy) != before
    assert policy_hash(snapshot) == before
    assert resumed.observed == 20
    assert copy_policy(snapshot) is not snapshot


def test_a_joined_log_teaches_the_rows_whose_reward_is_known() -> None:
    first = ActionSet(names=("a", "b"), features=np.array([[1.0], [0.0]]))
    second = ActionSet(names=("c",), features=np.array([[2.0]]))
    table = DecisionTable(
        contexts=np.array([[1.0], [2.0], [3.0], [4.0]]), action_sets=(first, second),
        action_set=np.array([0, 1, 0, 0]), executed=np.array([1, 0, 0, 1]), logp=np.zeros(4),
        reward=np.array([1.0, 2.0, np.nan, 3.0]), known=np.array([True, True, False, True]), at_s=np.arange(4.0),
        ids=("1", "2", "3", "4"), units=("u",) * 4, versions=("v",) * 4,
    )  # fmt: skip
    model, by_hand = JointLinearPosterior(1, 1), JointLinearPosterior(1, 1)
    learner = BanditLearner(LinUcbPolicy(model, 1.0), model, first)
    assert learner.observe_table(table) == 3
    for context, own, chosen, reward in ((1.0, first, 1, 1.0), (2.0, second, 0, 2.0), (4.0, first, 1, 3.0)):
        by_hand.observe(np.array([[context]]), np.array([chosen]), np.array([reward]), np.ones(1), own)
    assert model.tables.inverse.tobytes() == by_hand.tables.inverse.tobytes()


def test_a_model_of_another_size_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    save_policy(thompson_policy(LinearGaussianPosterior(2, 3)), tmp_path)
    model = LinearGaussianPosterior(2, 4)
    with pytest.raises(DataError, match=r"another model than this run's: array 'information' has shape \(2, 3\)"):
        load_into(model, tmp_path)
    with pytest.raises(DataError, match="a linear_gaussian model; this run's is beta_bernoulli"):
        load_into(BetaBernoulliPosterior(2), tmp_path)
    old = {"format": 1, "kind": "linear_gaussian", "numbers": {"precision": [[[2.0]]], "pull": [[6.0]], "noise": 0.5}}
    (tmp_path / "policy.json").write_text(json.dumps(old), encoding="utf-8")
    again = LinearGaussianPosterior(1, 1)
    load_into(again, tmp_path)
    assert again.mean(np.ones(1), numbered_actions(1)).tolist() == [3.0]
    (tmp_path / "policy.json").write_text(json.dumps({**old, "numbers": {}}), encoding="utf-8")
    with pytest.raises(DataError, match="cannot read the posterior"):
        load_policy(tmp_path)


def test_an_actor_draws_by_the_policys_distribution() -> None:
    policy = EpsilonFloor(LinUcbPolicy(learnt_model(1), 1.0), 0.4)
    chosen, logp = PolicyActor(policy, ACTIONS).choose(np.tile(CONTEXT, (20_000, 1)), np.random.default_rng(0))
    mass = np.exp(policy.logp(CONTEXT, ACTIONS))
    np.testing.assert_allclose(np.bincount(chosen, minlength=ARMS) / 20_000, mass, atol=0.02)
    np.testing.assert_allclose(np.exp(logp), mass[chosen], rtol=1e-6)
