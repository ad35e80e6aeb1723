"""The table of bad input, row by row: the exit code, what is said, and that nothing of the user's is touched.

Every case drives the real command on real files. The cases are in `bad_input_*.py` beside this file.
"""

import shutil
from pathlib import Path

import bad_input_config
import bad_input_data
import bad_input_worlds
import pytest
from bad_input import KEPT_OF_A_FAILURE, PAIRS, PROMPTS, RUN, Case, Stage, grpo, left_of_a_failure

from hone.cli.main import main

CASES = [*bad_input_config.CASES, *bad_input_data.CASES, *bad_input_worlds.CASES]
ROWS = {*range(1, 17), *range(19, 26), *range(30, 37), *range(42, 47), *range(54, 59)}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of `grpo()`; copied, never used itself."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("run.toml").write_text(grpo())
        Path("prompts.jsonl").write_bytes(PROMPTS)
        assert main(["train", "run.toml"]) == 0
    return place / RUN


def snapshot() -> dict[str, bytes | None]:
    """Everything in the runs folder; a lock is taken and given back by whoever looks."""
    files = (path for path in Path("runs").rglob("*") if path.name != "lock")
    return {str(path): path.read_bytes() if path.is_file() else None for path in files}


def arrange(case: Case) -> None:
    if isinstance(case.config, str):
        Path("run.toml").write_text(case.config)
    elif case.config is not None:
        Path("run.toml").write_bytes(case.config)
    for name, content in {"prompts.jsonl": PROMPTS, "pairs.jsonl": PAIRS, **case.files}.items():
        Path(name).write_bytes(content)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input(
    case: Case,
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    arrange(case)
    if case.prepare is not None:
        policy = finished_run / "checkpoints/step_00000002/policy"
        stage = Stage(
            patch=lambda owner, name, value: monkeypatch.setattr(owner, name, value),
            finished_run=lambda: shutil.copytree(finished_run, RUN),
            model=lambda: shutil.copytree(policy, "model"),
            later=request.addfinalizer,
        )
        case.prepare(stage)
    before = snapshot()
    code = main([*case.command, *case.words])
    said = capsys.readouterr()
    whole = said.out + said.err
    assert code == case.code, whole
    heard = " ".join((said.out if code == 0 else said.err).split())
    for part in case.says:
        assert part in heard, whole
    assert not any(part in whole for part in (*case.hides, "bug in hone", "\x1b")), whole
    assert ("/src/hone/" in whole) == case.ours, whole
    assert ("Traceback" in whole) == case.traceback, whole
    if case.keeps and (RUN / "capsule").is_dir():  # the program of the user's failed: what `hone debug` reads is kept
        assert case.code == 4
        assert not before
        assert left_of_a_failure() == KEPT_OF_A_FAILURE
    elif case.keeps:
        assert snapshot() == before
    if case.then is not None:
        case.then()


def test_every_row_has_a_case() -> None:
    """A row without a case would be a promise that nobody checks."""
    assert {case.row for case in CASES} == ROWS


def test_the_name_of_a_run_that_saved_nothing_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(grpo())
    Path("prompts.jsonl").write_bytes(PROMPTS)
    assert main(["train", "run.toml", bad_input_data.use("raises")]) == 4
    assert left_of_a_failure() == KEPT_OF_A_FAILURE
    assert main(["train", "run.toml"]) == 0
    assert (RUN / "checkpoints").is_dir()
    assert not (RUN / "capsule").exists(), "the failure is of another run"
