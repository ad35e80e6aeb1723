"""`hone ship` from the plan to 100%, back, and every wrong call; its page."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from hone.cli.main import main
from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Evidence, Outcome
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.gateway.shipped_versions import read_router
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.registry import StageMove

FILE = """
[service]
name = "shop"
actions = ["a", "b"]
[join]
window_s = 1
[rollout]
stages = [0.1, 0.5]
requests = 300
shadow_requests = 20
look_every_s = 0.01
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text(FILE)
    for name, epsilon in (("old", 0.1), ("new", 0.2)):
        save_policy(EpsilonGreedyPolicy(BetaBernoulliPosterior(2), epsilon), tmp_path / name)
    return tmp_path


def serve(units: int, rates: dict[str, float], *, first: int = 0) -> None:
    """Write the decisions of new units and their outcomes, an hour ago, as gateways would."""
    random, then_s = np.random.default_rng(first), SystemClock().now_s() - 3600
    batch: list[DecisionRecord] = []
    with open_rollouts(Path("shop.toml"), SystemClock()) as shop:
        router = read_router(shop.registry, "shop", "shop")
        for number in range(first, first + units):
            route = router.route("default", f"u{number}")
            batch.append(
                Decision(
                    id=f"d{number}", tenant="default", unit=f"u{number}", at_s=then_s, context=np.zeros(0),
                    actions=ActionSet(names=("a", "b")), choice=Choice(action=0, logp=-0.1), executed=0,
                    executed_logp=-0.1, version=route.version, route=route.label, source="g", seq=2 * number,
                )
            )  # fmt: skip
            batch.append(
                Outcome(
                    decision_id=f"d{number}", tenant="default", at_s=then_s, source="g", seq=2 * number + 1,
                    value=float(random.random() < rates.get(route.arm, 0.5)),
                )
            )  # fmt: skip
        shop.log.append(batch)


def ship(*arguments: str) -> int:
    return main(["ship", *arguments])


def through(rates: dict[str, float], capsys: pytest.CaptureFixture[str]) -> str:
    """Serve and look until the rollout ends -> what was printed."""
    said = ""
    for turn in range(8):
        serve(300, rates, first=10_000 + 300 * turn)
        assert ship("shop.toml", "--once") == 0
        said += capsys.readouterr().out
        if "reached 100%" in said or "went back" in said:
            return said
    raise AssertionError(said)


def test_a_policy_is_planned_shipped_and_taken_back(place: Path, capsys) -> None:
    serve(400, {"live": 0.5})
    assert ship("new", "--to", "shop.toml", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "rollout r1: version" in said
    assert "beside the service" in said
    assert "rolled back with probability 5.0% at most" in said
    assert [line.split()[0] for line in said.splitlines()[2:5]] == ["shadow", "10%", "50%"]
    with open_rollouts(Path("shop.toml"), SystemClock()) as shop:
        assert shop.registry.versions() == ()  # a plan adds nothing

    assert ship("old", "--to", "shop.toml", "--once") == 0
    said = capsys.readouterr().out
    assert "candidate -> shadow: version" in said
    assert "is at shadow, 0 of 20 requests scored; no alarm" in said
    said = through({"canary": 0.5, "control": 0.5}, capsys)
    assert "shadow -> 10%: 300 requests scored in the shadow" in said
    assert "50% -> 100%" in said

    assert ship("shop.toml", "--status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["rollout"]["stage"] == "100%"
    assert status["live"] == status["rollout"]["plan"]["version"]
    assert [one["after"] for one in status["rollout"]["transitions"]] == ["shadow", "10%", "50%", "100%"]

    assert ship("new", "--to", "shop.toml", "--once", "--json") == 0
    second = json.loads(capsys.readouterr().out)["rollout"]
    assert second["plan"]["control"] == status["live"]
    assert second["plan"]["name"] == "r2"
    said = through({"canary": 0.1, "control": 0.6}, capsys)
    assert "reward is worse: 0." in said
    assert ship("shop.toml", "--status") == 0
    assert "went back to" in capsys.readouterr().out

    page = (place / "shop" / "rollout_r2.html").read_text()
    for svg in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.split("</svg>")[0] + "</svg>")
    assert "limit 22.2: roll back" in page
    assert "Effect on reward" in page
    assert "(control)" not in page  # the second version has no parent
    assert page.count("<svg") in (2, 3)  # the effect is drawn from two looks on


def test_a_running_rollout_is_taken_back_by_a_person_and_a_live_one_by_its_pointer(place: Path, capsys) -> None:
    del place
    assert ship("old", "--to", "shop.toml", "--once") == 0
    through({}, capsys)
    assert ship("new", "--to", "shop.toml", "--once") == 0
    assert ship("shop.toml", "--back", "--reason", "the phone rings") == 0
    assert "went back to" in (said := capsys.readouterr().out)
    assert "the phone rings" in said
    assert ship("new", "--to", "shop.toml", "--once", "--name", "again") == 0  # another rollout may try it again
    assert "is at shadow" in capsys.readouterr().out
    assert ship("shop.toml", "--back", "--name", "again") == 0
    capsys.readouterr()
    with open_rollouts(Path("shop.toml"), SystemClock()) as shop:
        (live, new) = shop.registry.live("shop"), shop.add(Path("new"), "").id
        for stage in ("candidate", "live"):
            shop.registry.move("shop", StageMove(version=new, stage=stage), at_s=1.0, made_by="t")
    assert ship("shop.toml", "--back", "--json", "--name", "r1") == 0
    assert json.loads(capsys.readouterr().out)["live"] == live


def test_missing_evidence_is_named_with_the_command_that_adds_it(place: Path, capsys) -> None:
    Path("shop.toml").write_text(FILE + 'evidence = ["offline"]\n')
    assert ship("new", "--to", "shop.toml", "--once") == 2
    error = capsys.readouterr().err
    assert "evidence offline: none" in error
    assert "hone estimate LOG --registry" in error
    version = error.split("--version ")[1].split("`")[0]
    with open_rollouts(place / "shop.toml", SystemClock()) as shop:
        row = Evidence(kind="offline", verdict="ok", words="better", made_by="hone estimate", at_s=1.0)
        shop.registry.add_evidence(version, row)
    assert ship("new", "--to", "shop.toml", "--once") == 0


def test_the_plan_says_what_it_cannot_find(place: Path, capsys) -> None:
    del place
    Path("shop.toml").write_text(FILE + "[[rollout.guardrails]]\nmean = 0.02\nsd = 0.14\nworth = 0.1\n")
    assert ship("new", "--to", "shop.toml", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "warning: reward: a loss of 10% of 0.02 is found with probability" in said
    assert ship("new", "--to", "shop.toml", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["ladder"] == ["candidate", "shadow", "10%", "50%", "100%"]
    assert len(plan["warnings"]) == 1
    assert [row["exposed"] for row in plan["stages"]] == [60, 360]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["new"], 2, "new is a policy: name the service with --to"),
        (["new", "--to", "none.toml"], 2, "none.toml"),
        (["nothing", "--to", "shop.toml"], 3, "no such folder"),
        (["shop.toml"], 2, "has no rollout; begin one with `hone ship POLICY --to shop.toml`"),
        (["shop.toml", "--status"], 2, "has no rollout"),
        (["shop.toml", "--status", "--back"], 2, "exclude each other"),
        (["shop.toml", "--dry-run"], 2, "--dry-run plans a policy"),
        (["new", "--to", "shop.toml", "--back"], 2, "hone ship shop.toml --status"),
        (["new", "--to", "shop.toml", "--parent", "feed", "--once"], 3, "the parent of the new version"),
    ],
)
def test_wrong_calls_are_told_what_to_do(place: Path, capsys, arguments, code, message) -> None:
    del place
    assert ship(*arguments) == code
    assert message in capsys.readouterr().err
    assert "--to" in arguments or not Path("shop").exists()  # looking leaves nothing behind


def test_faults_of_the_rollout_table_name_their_lines(place: Path, capsys) -> None:
    del place
    Path("shop.toml").write_text(FILE + "alfa = 0.1\n")
    assert ship("new", "--to", "shop.toml") == 2
    assert "rollout.alfa" in (error := capsys.readouterr().err)
    assert "did you mean" in error
