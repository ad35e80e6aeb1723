"""Episodes of a decision log: returns by hand, coverage of exact values, verdicts, `hone estimate --trajectories`."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hone.cli.main import main
from hone.core.decisions import ActionSet, Choice, DecisionTable, Floats
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import BoltzmannPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.evaluate.off_policy import estimate_trajectories, logged_trajectories
from hone.decide.log.opening import open_decision_log
from hone.decide.simulators.logged_choices import logged_records

ACTIONS = ActionSet(names=("left", "right"))


class Rightward:
    """Takes `right` with a fixed probability."""

    def __init__(self, share: float) -> None:
        self.share = share

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return np.log(np.tile([1 - self.share, self.share], (len(contexts), 1)))

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        return self.logp_rows(context[None], actions)[0]

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        raise NotImplementedError


def walks(episodes: int, *, seed: int, steps: int = 4, scale: float = 1.0, pay: str = "noise") -> DecisionTable:
    """Episodes whose state is the number of steps to the right; `right` pays 1 in even states, all mixed in time."""
    random, n = np.random.default_rng(seed), episodes * steps
    right = random.random((episodes, steps)) < 0.5
    state = np.cumsum(right, axis=1) - right
    reward = right * (state % 2 == 0) + 0.1 * random.normal(size=right.shape)
    if pay == "pareto":
        reward *= random.pareto(1.6, size=right.shape)
    order = np.argsort(
        np.tile(np.arange(steps), (episodes, 1)) + random.random((episodes, 1)), axis=None, kind="stable"
    )
    unit = np.repeat(np.arange(episodes), steps)[order]
    return DecisionTable(
        contexts=state.ravel()[order, None].astype(float), action_sets=(ACTIONS,), action_set=np.zeros(n, np.int64),
        executed=right.ravel()[order].astype(np.int64), logp=np.full(n, np.log(0.5 * scale)),
        reward=reward.ravel()[order], known=np.ones(n, np.bool_), at_s=np.arange(float(n)),
        ids=tuple(map(str, range(n))), units=tuple(f"u{one}" for one in unit), versions=("v",) * n,
    )  # fmt: skip


def true_return(share: float, discount: float, steps: int = 4) -> float:
    """By the distribution of the state, which moves to the right with probability `share`."""
    chance, total = {0: 1.0}, 0.0
    for step in range(steps):
        total += discount**step * share * sum(p for state, p in chance.items() if state % 2 == 0)
        following: dict[int, float] = {}
        for state, p in chance.items():
            for after, q in ((state, 1 - share), (state + 1, share)):
                following[after] = following.get(after, 0.0) + p * q
        chance = following
    return total


def test_episodes_by_hand() -> None:
    """Units b (rewards 1, 3) and a (2), mixed in time: rows of b first, as its first decision is the first."""
    table = replace(
        walks(1, seed=0, steps=3), units=("b", "a", "b"), reward=np.array([1.0, 2.0, 3.0]), executed=np.array([1, 0, 0])
    )
    logged, rows = logged_trajectories(table, Rightward(0.8), discount=0.5)
    assert logged.offsets.tolist() == [0, 2, 3]
    assert logged.reward.tolist() == rows.reward.tolist() == [1.0, 3.0, 2.0]
    assert logged.returns.tolist() == [1 + 0.5 * 3, 2.0]
    assert logged.weights == pytest.approx([1.6 * 0.4, 0.4])


@pytest.mark.parametrize("share", [0.5, 0.65])
def test_intervals_hold_the_exact_return(share: float) -> None:
    truth, covered = true_return(share, 0.9), {"pdis": 0, "wpdis": 0, "tis": 0, "wtis": 0}
    for seed in range(30):
        report = estimate_trajectories(walks(500, seed=seed), {"new": Rightward(share)}, discount=0.9)
        for one in report.policies[0].estimates:
            covered[one.estimator] += one.low <= truth <= one.high
        assert report.policies[0].deciding.verdict == "ok"
        assert (report.policies[0].deciding.units, report.policies[0].deciding.n) == (500, 2000)
    assert min(covered.values()) >= 26


def test_the_return_of_the_log_itself_is_beside_it() -> None:
    table = walks(400, seed=1)
    report = estimate_trajectories(table, {"same": Rightward(0.5)})
    assert report.logged.value == pytest.approx(4 * float(table.reward.mean()))
    assert report.policies[0].deciding.value == pytest.approx(report.logged.value)
    assert report.differences[0].estimate.value == pytest.approx(0.0, abs=1e-12)


def rules(table: DecisionTable, share: float = 0.6, **settings) -> set[tuple[str, str]]:
    found = estimate_trajectories(table, {"new": Rightward(share)}, **settings).policies[0].deciding
    return {(one.rule, one.verdict) for one in found.reasons}


def test_verdicts_of_episodes() -> None:
    table = walks(500, seed=3)
    assert rules(table) == set()
    assert ("calibration", "refuse") in rules(walks(500, seed=3, scale=0.8))
    assert ("sample size", "refuse") in rules(walks(300, seed=3, steps=12), share=0.95)
    assert dict(rules(walks(800, seed=3, pay="pareto"))).keys() & {"tail"}
    assert ("not finite", "refuse") in rules(replace(table, reward=np.where(np.arange(2000) == 7, 1e308, table.reward)))
    never = replace(table, executed=np.zeros(2000, np.int64))
    assert ("support", "refuse") in rules(never)


def test_an_episode_with_an_open_reward_is_left_out_as_a_whole() -> None:
    table = walks(500, seed=4)
    known = np.arange(2000) != 100
    report = estimate_trajectories(replace(table, known=known), {"new": Rightward(0.6)})
    assert (report.policies[0].deciding.units, report.used, report.rows) == (499, 1996, 2000)
    with pytest.raises(DataError, match="none of the 500 units' episodes can be used"):
        estimate_trajectories(replace(table, known=np.zeros(2000, np.bool_)), {"new": Rightward(0.6)})


def test_wrong_words_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="no estimator of trajectories 'dr'") as error:
        estimate_trajectories(walks(5, seed=0), {"new": Rightward(0.6)}, estimators=["dr"], discount=1.5)  # type: ignore[list-item]
    assert "a discount is above 0 and at most 1, got 1.5" in str(error.value)


def test_the_command_judges_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    with closing(open_decision_log(tmp_path / "walks.db")) as log:
        log.append(list(logged_records(walks(300, seed=5), delay_s=1.0)))
    model = LinearGaussianPosterior(2, 1, intercept=True)
    save_policy(BoltzmannPolicy(model, temperature=1.0), Path("uniform"))
    command = ["estimate", "walks.db", "--policy", "uniform", "--trajectories", "--discount", "0.9"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("uniform: ok\nno difference shown between uniform and the log's policy")
    assert "1,200 of 1,200 decisions used, 300 units" in out
    assert "mean return of the log" in out
    assert main([*command, "--estimator", "wpdis", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert [one["estimator"] for one in found["estimates"]] == ["wpdis", "pdis", "tis", "wtis"]
    for words, message in (
        (["--estimator", "dr"], "--estimator dr"),
        (["--segment", "version"], "--segment belongs to single decisions"),
        (["--interval", "bernstein"], "trajectories have normal and bootstrap intervals"),
    ):
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["estimate", "walks.db", "--policy", "uniform", "--discount", "0.9"]) == 2
    assert "--discount belongs to --trajectories" in capsys.readouterr().err
