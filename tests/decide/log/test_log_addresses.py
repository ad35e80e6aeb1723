"""Addresses of logs: their names for messages, their passwords, and errors of engines that repeat them."""

from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.errors import ConfigError, HoneError
from hone.decide.gateway.opening import log_address
from hone.decide.gateway.service_config import LogTableConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import log_name, without_secrets

SECRET = "hunter2"
NAMES = {
    "decisions.db": "decisions.db",
    "postgresql://h/d": "postgresql://h/d",
    "postgresql://u:hunter2@h:5/d": "postgresql://h:5/d",
    "postgresql://u:a@hunter2@h/d": "postgresql://h/d",
    "postgresql://u:hunter2@h/d?sslmode=require": "postgresql://h/d",
    "postgresql://h/d?password=hunter2": "postgresql://h/d",
    "postgresql://h/d?password=a@hunter2": "postgresql://(not shown)",
    "postgresql://u:hunter2/x@h/d": "postgresql://(not shown)",
    "postgresql://u:hunter2?x@h/d": "postgresql://(not shown)",
    "redis://:hunter2@h:6379/0": "redis://h:6379/0",
}


@pytest.mark.parametrize("address", NAMES)
def test_the_name_of_a_log_has_no_password(address: str) -> None:
    assert log_name(address) == NAMES[address]
    assert log_name(Path("a/b.db")) == "a/b.db"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://u:hunter2@h/d", "no route for hunter2 at postgresql://u:hunter2@h/d"),
        ("postgresql://u:hunter%322@h/d", "invalid percent-encoded token: hunter%322, or hunter22"),
        ("postgresql://u:hunter2/part@h/d", "could not translate host name: hunter2"),
        ("redis://h/0?password=hunter2", "bad option password=hunter2"),
        ("redis://h/0?password=hunter%322", "bad option hunter22"),
        ("postgresql://u:a@hunter2@h/d", "the host is hunter2@h"),
    ],
)
def test_words_of_an_engine_are_told_without_the_password(address: str, words: str) -> None:
    assert "hunter2" not in without_secrets(ValueError(words), address)
    assert without_secrets(ValueError(""), address) == "ValueError"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d",
        "postgresql://u:hunter2%zz@127.0.0.1:1/d",
        "postgresql://u:hunter2@127.0.0.1:port/d",
        "postgresql://u:hunter2/x@127.0.0.1:1/d",
        "redis://:hunter2@127.0.0.1:1/0",
        "redis://:hunter2@127.0.0.1:port/0",
        "mysql://u:hunter2@h/d",
        "hunter2://h/d?password=hunter2"[7:],
    ],
)
def test_no_command_shows_the_password_of_a_log(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HoneError) as caught:
        open_decision_log(address)
    assert SECRET not in str(caught.value)
    service = tmp_path / "shop.toml"
    service.write_text(f'[service]\nactions = ["a"]\n[log]\naddress = "{address}"\n')
    assert main(["serve", str(service), "--dry-run"]) == 0
    main(["serve", str(service), "--port", "0"])
    main(["log", address])
    main(["estimate", address, "--policy", "uniform"])
    main(["ship", str(service)])
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    assert "log " in told.out


def test_a_password_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOG_PASSWORD", "p@ss/w?rd")
    for address, whole in (
        ("postgresql://u@h/d", "postgresql://u:p%40ss%2Fw%3Frd@h/d"),
        ("redis://h:1/0", "redis://:p%40ss%2Fw%3Frd@h:1/0"),
    ):
        assert log_address(tmp_path, LogTableConfig(address=address, password_env="LOG_PASSWORD")) == whole
        assert log_name(whole) == log_name(address)
    with pytest.raises(ConfigError, match="leave it out"):
        log_address(tmp_path, LogTableConfig(address="postgresql://u:x@h/d", password_env="LOG_PASSWORD"))
    monkeypatch.delenv("LOG_PASSWORD")
    with pytest.raises(ConfigError, match="the environment variable LOG_PASSWORD is not set"):
        log_address(tmp_path, LogTableConfig(address="redis://h/0", password_env="LOG_PASSWORD"))


def test_the_plan_names_a_variable_that_is_not_set_with_the_other_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = tmp_path / "shop.toml"
    service.write_text(
        '[service]\nactions = ["a"]\n[log]\naddress = "redis://h/0"\npassword_env = "NO_SUCH"\n'
        '[[service.clients]]\nname = "web"\ntoken_env = "hunter2"\n'
        '[[service.clients]]\nname = "app"\ntoken_file = "gone"\n'
    )
    assert main(["serve", str(service), "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert "the environment variable NO_SUCH is not set" in told
    assert "shop.toml:8: client 'web': the environment variable (not shown: it is no name" in told
    assert "shop.toml:11: client 'app': token_file gone cannot be read: FileNotFoundError" in told
    assert SECRET not in told
