"""`hone eval --search` and `[evaluation.search]`: what is printed, saved and shown, and options that cannot be."""

import json
from pathlib import Path

import pytest
from tiny_runs import SFT, hone, lay_out

from hone.run.store.records import SEARCH, PlanScore, SearchRecord, frontier

SEARCH_TABLE = """
[evaluation.search]
plans = ["best_of:4", "beam:2x2"]
step = "1"
answer = '\\d+'
[evaluation.search.scorer]
kind = "verifier"
functions = [{ use = "rewards.py:right" }]
beginnings = [{ use = "rewards.py:begun" }]
"""
BEGUN = '''

def begun(completions, answer):
    """Whether an answer begins as the right one."""
    return [float(wanted.startswith(text)) for text, wanted in zip(completions, answer)]
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose config asks for searches."""
    folder = tmp_path_factory.mktemp("search")
    lay_out(folder)
    with (folder / "rewards.py").open("a") as file:
        file.write(BEGUN)
    (folder / "search.toml").write_text(SFT + SEARCH_TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert hone("train", "search.toml") == 0
    return folder


def test_a_finished_run_has_its_searches_and_shows_them(trained: Path) -> None:
    found = SEARCH.read(trained / "runs" / "tiny")
    assert found is not None
    assert found.problems == 9
    assert [plan.plan for plan in found.plans if plan.family == "best_of"] == ["best_of:2", "best_of:4"]
    assert found.plans[-1].plan == "beam:2x2"
    page = (trained / "runs" / "tiny" / "report.html").read_text()
    assert "Search at test time" in page
    assert "<circle" in page


def test_eval_searches_by_the_plans_of_the_command(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    assert hone("eval", "tiny", "--search", "majority:3", "--search", "weighted_vote:4") == 0
    shown = capsys.readouterr().out
    assert "search on 9 problems, scorer right" in shown
    assert "weighted_vote:4" in shown
    assert "beam" not in shown
    plans = json.loads((trained / "runs" / "tiny" / SEARCH.name).read_text())["plans"]
    assert [plan["plan"] for plan in plans if plan["family"] == "majority"] == [
        "majority:2",
        "majority:3",
        "majority:4",
    ]
    assert hone("eval", "tiny", "--search", "best_of:2", "--scorer", "exact_match") == 0
    assert "scorer exact_match" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--search", "bem:4x4"], "--search: 'bem:4x4' is no search plan; did you mean beam?"),
        (["--search", "beam:4"], "--search: 'beam:4' is not of the form beam:WIDTHxBRANCH"),
        (["--search", "best_of:2", "--search", "best_of:2"], "plans name best_of:2 twice"),
        (["--answer", "("], "answer = '(' is no regular expression"),
        (["--search", "best_of:2", "--server", "http://127.0.0.1:1"], "--server asks a server once"),
        (["--search", "best_of:2", "--scorer", "rewards.py:rigth"], "rigth"),
        (["--search", "beam:2x2", "--step", "#"], "evaluation.search.step = '#' never occurs in 36 answers"),
        (["--search", "best_of:2", "--scorer", "no_such_folder"], "no_such_folder"),
    ],
)
def test_options_that_cannot_be(
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(trained)
    assert hone("eval", "tiny", *arguments) in (2, 3, 4)
    assert message in capsys.readouterr().err


def test_a_config_without_a_scorer_is_refused_by_plan(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    bare = SEARCH_TABLE[: SEARCH_TABLE.index("[evaluation.search.scorer]")]
    Path("bare.toml").write_text(SFT + bare.replace('"beam:2x2"', '"bem:2x2"'))
    assert hone("plan", "bare.toml") == 2
    assert "'bem:2x2' is no search plan; did you mean beam" in capsys.readouterr().err
    Path("bare.toml").write_text(SFT + bare)
    assert hone("plan", "bare.toml") == 2
    assert "best_of:4, beam:2x2 select by scores: give a scorer" in capsys.readouterr().err


def test_a_scorer_that_is_not_there_is_found_by_plan(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    table = SEARCH_TABLE[: SEARCH_TABLE.index("[evaluation.search.scorer]")]
    for scorer, message in (
        ('scorer.path = "nowhere"', "nowhere"),
        ('scorer = { kind = "verifier", functions = [{ use = "rewards.py:rigth" }] }', "rigth"),
    ):
        Path("absent.toml").write_text(SFT + table + scorer)
        assert hone("plan", "absent.toml") in (3, 4)
        assert message in capsys.readouterr().err


def test_the_frontier_and_its_file(tmp_path: Path) -> None:
    def plan(name: str, mean: float, tokens: float) -> PlanScore:
        return PlanScore(plan=name, family=name.partition(":")[0], mean=mean, low=mean, high=mean,
                         drawn_tokens=tokens, scored_tokens=0.0, seconds=0.0)  # fmt: skip

    plans = [plan("pass:1", 0.3, 10), plan("pass:4", 0.9, 40), plan("best_of:2", 0.5, 20), plan("majority:2", 0.4, 20),
             plan("best_of:4", 0.5, 40), plan("beam:1x4", 0.6, 30)]  # fmt: skip
    assert [one.plan for one in frontier(plans)] == ["pass:1", "best_of:2", "beam:1x4"]
    record = SearchRecord(problems=3, scorer="orm", auc=float("nan"), plans=tuple(plans), notes=("hurts",))
    SEARCH.write(tmp_path, record)
    again = SEARCH.read(tmp_path)
    assert again is not None
    assert again.plans == record.plans
    assert again.notes == ("hurts",)
    assert SEARCH.read(tmp_path / "nowhere") is None
