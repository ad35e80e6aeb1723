"""`hone estimate` on a log, a view and saved policies: verdicts, exit codes, JSON, page, evidence, wrong options."""

import json
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hone.cli.main import main
from hone.decide.bandits.greedy import BoltzmannPolicy, EpsilonGreedyPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.evaluate.off_policy import read_decision_table
from hone.decide.joins.view import take_decisions
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import log_name
from hone.decide.registry import VersionOrigin, open_registry
from hone.decide.simulators.logged_choices import LinearChoicePolicy, logged_choice_world, logged_records

WORLD = logged_choice_world(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, a log of a greedy policy, and two candidates that learnt from the first half."""
    folder = tmp_path_factory.mktemp("shop")
    table = WORLD.log(2000, seed=101)
    greedy = WORLD.log(1000, seed=102, policy=LinearChoicePolicy(weights=WORLD.behaviour.weights, temperature=1e-3))
    for name, one in (("decisions.db", table), ("greedy.db", greedy)):
        with closing(open_decision_log(folder / name)) as log:
            log.append(list(logged_records(one)))
    model = LinearGaussianPosterior(8, 5)
    half = take_decisions(table, np.arange(1000))
    model.observe(half.contexts, half.executed, half.reward, np.ones(1000), WORLD.actions)
    save_policy(BoltzmannPolicy(model, temperature=0.3), folder / "careful")
    save_policy(EpsilonGreedyPolicy(model, epsilon=0.1), folder / "bold")
    return folder


@pytest.fixture(autouse=True)
def place(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "160")
    return made


def test_the_verdict_comes_first_then_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "decisions.db", "--policy", "careful", "--since", "1000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("careful: ok\nno difference shown between careful and the log's policy: +0.0")  # a left skew
    assert "1,000 of 1,000 decisions used, 1,000 units; mean reward of the log" in out
    assert [line.split()[1] for line in out.splitlines() if re.match(r"careful +(dr|snips|ips|dm) ", line)] == [
        "dr", "snips", "ips", "dm",
    ]  # fmt: skip
    page = Path("estimate.html").read_text(encoding="utf-8")
    for words in (
        "Estimates",
        "Comparisons",
        "Propensities",
        "Assumptions",
        "Overlap by segment",
        "logged probability",
    ):
        assert words in page


def test_candidates_are_compared_in_pairs_and_ordered(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "careful", "--policy", "bold", "--compare", "--estimator", "snips", "--html", "both.html"]
    assert main(["estimate", "decisions.db", *words]) == 0
    out = capsys.readouterr().out
    assert "no difference shown between bold and careful: " in out
    assert "order: careful, bold" in out
    assert "bold - careful" in Path("both.html").read_text(encoding="utf-8")


def test_a_log_without_exploration_is_refused_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "greedy.db", "--policy", "bold"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("bold: refuse\nthis log cannot tell the value of bold\n  refuse, support: about ")
    assert "add exploration (a floor) to the policy that logs" in out


def test_json_holds_every_figure_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "decisions.db", "--policy", "bold", "--json", "--level", "0.9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "ok"
    assert document["words"]["bold"].startswith("bold is better than")
    found = document["policies"][0]["estimates"][0]
    assert (found["estimator"], found["level"], found["n"], found["verdict"]) == ("dr", 0.9, 2000, "ok")
    assert found["low"] < found["value"] < found["high"]
    assert sum(document["propensity_counts"]) == 2000


def test_a_saved_view_gives_the_same_estimate_as_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "decisions.db", "--view", "frozen"]) == 0
    capsys.readouterr()
    answers = []
    for source in ("decisions.db", "frozen"):
        assert main(["estimate", source, "--policy", "bold", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]


def test_open_windows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "decisions.db", "--policy", "bold", "--as-of", "1999", "--window", "500"]) == 3
    assert "refuse, open windows: 25.0% of the rewards may still arrive" in capsys.readouterr().out


def test_the_policy_of_the_log_makes_support_exact(capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(BoltzmannPolicy(LinearGaussianPosterior(8, 5), temperature=1.0), Path("uniform"))
    assert main(["estimate", "decisions.db", "--policy", "bold", "--behaviour", "uniform", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["estimates"][0]["overlap"] == 1.0


def test_evidence_goes_to_the_version_whose_policy_was_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    registry = open_registry(Path("registry"), create=True)
    number = registry.add(Path("bold"), VersionOrigin(code="1", config="c"), at_s=1.0, made_by="a test").id
    assert main(["estimate", "decisions.db", "--registry", "registry", "--version", number]) == 0
    assert f"evidence of version {number} added to registry" in capsys.readouterr().out
    (evidence,) = registry.evidence(number)
    assert (evidence.kind, evidence.verdict, evidence.count) == ("offline", "ok", 2000)
    assert evidence.made_by == "hone estimate decisions.db --estimator dr"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "--policy is missing"),
        (["--policy", "bold", "--policy", "bold"], 2, "named twice: bold, bold"),
        (["--policy", "bold", "--estimator", "drr"], 2, "--estimator drr; did you mean dr?"),
        (["--policy", "bold", "--interval", "norml"], 2, "--interval norml; did you mean normal?"),
        (["--policy", "bold", "--reward-model", "rigde"], 2, "--reward-model rigde; did you mean ridge?"),
        (["--policy", "bold", "--level", "1"], 2, "--level must be below 1, got 1"),
        (["--policy", "bold", "--segment", "feature:7"], 2, "no segment 'feature:7'"),
        (["--policy", "bold", "--version", "x"], 2, "--registry and --version go together"),
        (["--policy", "bold", "--registry", "r", "--version", "x"], 2, "evidence of a version's own policy"),
        (["--policy", "bold", "--as-of", "noon"], 2, "--as-of must be seconds"),
        (["--policy", "none", "--policy", "nil"], 3, "nil: there is no such folder"),
        (["--policy", "bold", "--since", "99999"], 3, "none of its 2000 is at 99999 s or later"),
        (["--policy", "bold", "--tenant", "other"], 3, "no decisions of tenant 'other'"),
        (["--policy", "bold", "--reward-model", "logistic"], 3, "use the reward model `ridge`"),
        (["--policy", "bold", "--interval", "bernstein", "--estimator", "snips"], 2, "snips: Bernstein's bound"),
    ],
)
def test_wrong_words_are_named(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "decisions.db", *words]) == code
    assert message in capsys.readouterr().err


def test_bernstein_stands_beside_sums_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "decisions.db", "--policy", "bold", "--interval", "bernstein", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"][0]["estimates"]
    assert [one["estimator"] for one in found] == ["dr", "ips", "dm"]


def test_a_log_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "nothing.db", "--policy", "bold"]) == 3
    assert "nothing.db: there is no such log or view" in capsys.readouterr().err
    assert not Path("nothing.db").exists()


def test_a_password_is_neither_on_a_page_nor_in_evidence() -> None:
    assert log_name("postgresql://ann:secret@db:5432/shop?password=x") == "postgresql://db:5432/shop"
    assert log_name("logs/decisions.db") == "logs/decisions.db"


def test_a_table_can_begin_at_a_moment(made: Path) -> None:
    late = read_decision_table(str(made / "decisions.db"), as_of_s=1e9, since_s=1500.0)
    assert (len(late), late.ids[0]) == (500, "d1500")
