"""State helpers, config base, clock and errors: what fits is handed over, what does not is named."""

from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock
from pydantic import Field, ValidationError
from safetensors.numpy import save_file

import hone
from hone.core.clock import SystemClock
from hone.core.config import Config
from hone.core.errors import (
    ConfigError,
    DataError,
    DivergedError,
    ErrorCollector,
    HoneError,
    InterruptedRun,
    ResourceError,
    UserCodeError,
    did_you_mean,
    run_all_checks,
)
from hone.core.state import State, array, integer, number, share_arrays, substate

STATE: State = {"inner": {"x": 1}, "column": np.arange(3), "count": 4, "flag": True, "text": "a", "rate": 0.5}


def test_what_is_there_is_handed_over() -> None:
    assert substate(STATE, "inner") == {"x": 1}
    assert array(STATE, "column").tolist() == [0, 1, 2]
    assert integer(STATE, "count") == 4
    assert number(STATE, "rate") == 0.5


@pytest.mark.parametrize("name", ["missing", "text", "flag", "column"])
def test_what_is_not_an_integer_is_named(name: str) -> None:
    with pytest.raises(DataError, match=f"no integer '{name}' .it holds column, count, flag, inner, rate, text"):
        integer(STATE, name)


@pytest.mark.parametrize("name", ["missing", "text", "flag", "count"])
def test_what_is_not_a_number_is_named(name: str) -> None:
    with pytest.raises(DataError, match=f"no number '{name}' .it holds column, count, flag, inner, rate, text"):
        number(STATE, name)


@pytest.mark.parametrize("name", ["missing", "inner", "count"])
def test_what_is_not_an_array_is_named(name: str) -> None:
    with pytest.raises(DataError, match=f"no array '{name}'"):
        array(STATE, name)


@pytest.mark.parametrize("name", ["missing", "column", "count"])
def test_what_is_not_a_part_is_named(name: str) -> None:
    with pytest.raises(DataError, match=f"no part '{name}'"):
        substate(STATE, name)


def test_exit_codes_are_those_of_the_contract() -> None:
    kinds = (HoneError, ConfigError, DataError, UserCodeError, ResourceError, DivergedError)
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4, 5, 6]
    assert InterruptedRun("stopped").exit_code == 130
    assert InterruptedRun("stopped", exit_code=143).exit_code == 143
    assert InterruptedRun.exit_code == 1, "the code belongs to the one that was raised, not to all of them"


def test_faults_are_raised_together_or_not_at_all() -> None:
    faults = ErrorCollector(DataError)
    faults.raise_if_any()
    faults.add("one")
    faults.extend(["two", "three"])
    with pytest.raises(DataError) as caught:
        faults.raise_if_any()
    assert caught.value.messages == ("one", "two", "three")
    assert str(caught.value) == "one\ntwo\nthree"


def fails(fault: HoneError) -> int:
    raise fault


def test_all_checks_run_before_anything_is_raised() -> None:
    ran: list[str] = []

    def passes() -> int:
        ran.append("last")
        return 3

    with pytest.raises(DataError) as caught:
        run_all_checks(
            {
                "a": lambda: fails(DataError("a is bad", "and long")),
                "b": lambda: fails(ConfigError("b is bad", "a is bad")),
                "c": passes,
            }
        )
    assert ran == ["last"]
    assert caught.value.messages == ("a is bad", "and long", "b is bad"), "each said once, in order"
    assert run_all_checks({"c": passes, "d": lambda: 5}) == {"c": 3, "d": 5}


def test_what_is_no_expected_failure_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        run_all_checks({"a": lambda: fails(DataError("hidden")), "b": lambda: 1 // 0})


def test_the_nearest_name_is_proposed() -> None:
    known = ["lr", "epochs", "minibatches"]
    assert did_you_mean("lrr", known) == "; did you mean lr?"
    assert did_you_mean("minibatch", known) == "; did you mean minibatches?"
    assert did_you_mean("zzz", known) == "; known: epochs, lr, minibatches"
    assert did_you_mean("zzz", []) == ""


class Sample(Config):
    """A config."""

    rate: float = Field(default=0.5, gt=0)
    """A rate."""
    count: int = 1
    """A count."""


@pytest.mark.parametrize(
    "values",
    [{"rate": "0.5"}, {"rate": float("nan")}, {"rate": float("inf")}, {"rate": 0}, {"count": 1.0}, {"cuont": 1}],
)
def test_configs_refuse_what_was_not_meant(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate(values)


def test_configs_take_whole_numbers_for_floats_and_stay_as_they_are() -> None:
    config = Sample.model_validate({"rate": 1})
    assert config.rate == 1.0
    with pytest.raises(ValidationError):
        config.count = 2  # type: ignore[misc]
    assert Sample.model_fields["rate"].description == "A rate."


def test_a_clock_of_ones_own() -> None:
    clock = ManualClock(5.0)
    clock.advance(2.5)
    assert clock.now_s() == clock.monotonic_s() == 7.5
    system = SystemClock()
    assert system.monotonic_s() <= system.monotonic_s()
    assert system.now_s() > 1.7e9


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600), (0o777, 0o644)])
def test_a_file_of_arrays_is_read_by_those_who_read_its_folder(tmp_path: Path, folder: int, file: int) -> None:
    """And written by its owner alone, wherever it lies."""
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(folder)
    save_file({"a": np.zeros(2)}, place / "arrays.safetensors")
    share_arrays(place / "arrays.safetensors")
    assert (place / "arrays.safetensors").stat().st_mode & 0o777 == file


def test_a_mount_without_permissions_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "arrays.safetensors").write_bytes(b"")
    monkeypatch.setattr(Path, "chmod", refuse)
    share_arrays(tmp_path / "arrays.safetensors")


def test_every_file_of_arrays_that_hone_writes_is_shared() -> None:
    writes = 0
    for path in Path(hone.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        writes += text.count("    save_file(")
        assert text.count("    save_file(") == text.count("    share_arrays("), path
    assert writes >= 8
