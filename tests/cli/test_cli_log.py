"""`hone log`: the verdict first, then the figures; a frozen view, a page, an erased unit."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.decisions import Decision, DecisionRecord, schema_hash
from hone.decide.joins.parquet import read_view
from hone.decide.log.opening import open_decision_log
from hone.decide.log.retention import export_log, read_exports
from support.decision_records import decision, outcome

NOON = ("--as-of", "1970-01-01T00:02:00Z", "--window", "30")


def make_log(path: Path, records: Sequence[DecisionRecord]) -> None:
    log = open_decision_log(path)
    log.append(records)
    log.close()


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound log of ten decisions, of which five are paid and two are open."""
    monkeypatch.chdir(tmp_path)
    log: list[DecisionRecord] = [
        decision(f"d{row}", 10.0 * row + 10, seq=row, executed=row % 3, p=0.25, unit=f"u{row % 4}") for row in range(10)
    ]
    make_log(tmp_path / "shop.db", [*log, *(outcome(f"d{row}", 10.0 * row + 12, seq=row) for row in range(5))])
    return tmp_path / "shop.db"


def test_a_sound_log_is_told_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "shop.db", *NOON]) == 0
    said = capsys.readouterr().out
    assert said.startswith("shop.db is sound: 10 decisions and 5 outcomes\n")
    assert "5 joined, 4 by default (0), 1 open (10.0%)" in said
    assert "median 2 s" in said
    assert "0.5556 of the 9 final ones" in said


@pytest.mark.parametrize("final", [False, True])
def test_a_log_without_rewards_has_no_figures_of_them(capsys: pytest.CaptureFixture[str], final: bool) -> None:
    make_log(Path("new.db"), [decision(f"d{row}", 10.0 * row + 10, seq=row, executed=0) for row in range(3)])
    assert main(["log", "new.db", "--as-of", "1970-01-01T00:00:40Z", "--window", "1" if final else "300"]) == 0
    said = capsys.readouterr().out
    assert "nan" not in said and "inf" not in said
    assert "no reward has come yet" in said
    assert ("0 of the 3 final ones" if final else "none is final yet") in said


def test_json_has_everything_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "shop.db", *NOON, "--json", "--view", "noon"]) == 0
    (tenant,) = json.loads(capsys.readouterr().out)["tenants"]
    assert (tenant["verdict"], tenant["faults"]) == ("ok", [])
    assert tenant["view"]["counts"]["censored"] == 1
    assert [one["decisions"] for one in tenant["view"]["actions"]] == [4, 3, 3]
    assert len(read_view(Path("noon")).table) == 10


def test_a_view_an_export_and_a_page_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--view", "noon", "--export", "noon.parquet", "--report", "noon.html"]
    assert main(["log", "shop.db", *NOON, *wanted]) == 0
    assert read_view(Path("noon.parquet")).counts == read_view(Path("noon")).counts
    page = Path("noon.html").read_text()
    for words in ("sound: 10 decisions", "Delay of rewards", "Probabilities of actions", "Reward by action"):
        assert words in page
    assert page.count("<svg") == 3
    capsys.readouterr()
    assert main(["log", "noon"]) == 0
    assert capsys.readouterr().out.startswith("noon: a frozen view")
    assert main(["log", "shop.db", *NOON, "--rule", "max", "--view", "noon"]) == 2


def test_an_erased_unit_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "shop.db", "--erase", "u1"]) == 0
    assert "erased 4 records of unit u1 of tenant shop" in capsys.readouterr().out
    assert main(["log", "shop.db"]) == 0
    assert "sound: 7 decisions and 4 outcomes" in capsys.readouterr().out


def test_a_change_of_schema_is_told_by_the_columns_name(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = ("age", "price"), ("age", "price", "country")
    log = [
        decision("d0", 1.0, seq=0, schema=schema_hash(old)),
        decision("d1", 2.0, seq=1, schema=schema_hash(new), context=(1.0, 2.0, 3.0)),
    ]
    make_log(Path("mixed.db"), log)
    names = ["--features", "age,price", "--features", "age,price,country"]
    assert main(["log", "mixed.db", *names]) == 3
    said = capsys.readouterr().out
    assert said.startswith("mixed.db is not sound: 1 fault in 2 decisions and 0 outcomes")
    assert "wrong: the schema of the features changes at decision 'd1' (2 s): country is new" in said
    assert main(["log", "mixed.db", "--view", "all"]) == 3
    assert "2 schemas of features in one view" in capsys.readouterr().err
    main(["log", "mixed.db", "--schema", schema_hash(old), "--view", "old"])
    assert read_view(Path("old")).table.ids == ("d0",)


def test_tenants_are_judged_apart_and_a_view_is_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    both: list[DecisionRecord] = [decision("d0", 1.0, seq=0, tenant=name) for name in ("a", "b")]
    make_log(Path("two.db"), [*both, outcome("d0", 2.0, 5.0, seq=0, tenant="b")])
    assert main(["log", "two.db"]) == 0
    said = capsys.readouterr().out
    assert "two.db, tenant a is sound: 1 decisions and 0 outcomes" in said
    assert "two.db, tenant b is sound: 1 decisions and 1 outcomes" in said
    assert main(["log", "two.db", "--view", "all"]) == 2
    assert "choose one by --tenant: a, b" in capsys.readouterr().err
    assert main(["log", "two.db", "--tenant", "b", "--view", "b"]) == 0
    assert read_view(Path("b")).table.reward.tolist() == [5.0]


def test_an_exported_log_is_joined_from_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_decision_log("shop.db")) as log:
        export_log(log, Path("files"))
    assert main(["log", "files", *NOON]) == 2
    assert "name the joined file by --export" in capsys.readouterr().err
    assert main(["log", "files", *NOON, "--export", "large.parquet"]) == 0
    assert "large.parquet: 10 decisions, 5 joined, 4 by default, 1 open" in capsys.readouterr().out
    assert main(["log", "shop.db", *NOON, "--export", "small.parquet"]) == 0
    assert read_view(Path("large.parquet")).table.reward[:9].tolist() == [1.0] * 5 + [0.0] * 4
    assert read_view(Path("large.parquet")).counts == read_view(Path("small.parquet")).counts
    Path("nothing").mkdir()
    assert main(["log", "nothing"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["log", "shoop.db"], 3, "shoop.db: there is no such log"),
        (["log", "shop.db", "--as-of", "noon"], 2, "--as-of must be seconds since 1970 or a time"),
        (["log", "shop.db", "--window", "-1"], 2, "--window must be a number >= 1e-09, got -1"),
        (["log", "shop.db", "--rule", "mean"], 2, "--rule mean; "),
        (["log", "shop.db", "--low", "2", "--high", "1"], 2, "low 2 must be below high 1"),
        (["log", "shop.db", "--high", "1", "--beyond", "drop"], 2, "--beyond drop: refuse or clip"),
        (["log", "shop.db", "--tenant", "x"], 3, "shop.db has no records of tenant 'x'"),
        (["log", "shop.db", "--tenant", "x", "--erase", "u"], 3, "shop.db has no records of tenant 'x'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert words in capsys.readouterr().err


def test_older_records_move_to_an_archive_and_are_erased_there_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "shop.db", "--retain", "1970-01-01T00:00:45Z", "--archive", "old"]) == 0
    assert capsys.readouterr().out == "moved 8 records to old, 2 files written\n"
    assert main(["log", "shop.db", "--erase", "u1", "--archive", "old"]) == 0
    assert "erased 2 records of unit u1 of tenant shop from old" in capsys.readouterr().out
    assert len([one for one in read_exports(Path("old")) if isinstance(one, Decision) and one.unit == "u1"]) == 0
    assert main(["log", "shop.db", "--retain", "20"]) == 2
    assert "--retain 20 needs --archive DIR" in capsys.readouterr().err
    assert main(["log", "shop.db", "--erase", "u1", "--archive", "nowhere"]) == 3
    assert "--archive nowhere: there is no such folder" in capsys.readouterr().err
