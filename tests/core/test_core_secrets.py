"""Secrets in messages: passwords of addresses, keys whose values no message shows, names of variables."""

import pytest

from hone.config.resolve import format_value, load
from hone.core.config import Config, ConfigSetting
from hone.core.errors import SECRET_KEY, ConfigError, hide_passwords, variable_name
from hone.run.report import run_page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@h/d", "postgresql://u:***@h/d"),
        ("at redis://:p@ss:w/rd@h:1/0 and on", "at redis://:***@h:1/0 and on"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h/?a=b&api_key=abc&c=d", "http://h/?a=b&api_key=***&c=d"),
        ("host=h password=abc user=u", "host=h password=*** user=u"),
        ("http://h/?sslpassword=abc", "http://h/?sslpassword=***"),
        ("a:b@c is no address", "a:b@c is no address"),
        ("max_tokens=5", "max_tokens=5"),
    ],
)
def test_passwords_of_addresses_are_hidden(text, shown):
    assert hide_passwords(text) == shown


def test_keys_of_secrets_are_told_from_others():
    secret = ("token", "password", "api_key", "apikey", "client_secret", "token_sha256", "credentials", "PASSWORD")
    assert all(map(SECRET_KEY.fullmatch, secret))
    others = ("token_env", "token_file", "tokens", "max_tokens", "per_token", "log_key", "tokenizer", "key", "secrets")
    assert not any(map(SECRET_KEY.fullmatch, others))


def test_a_variable_is_named_only_if_it_looks_like_one():
    assert (variable_name("NORTH_TOKEN"), variable_name("A1")) == ("NORTH_TOKEN", "A1")
    for odd in ("sk-abc123", "hunter2", "A B", "", "a" * 65):
        assert "not shown" in variable_name(odd) and (not odd or odd not in variable_name(odd))


class _Inner(Config):
    token: str = ""
    """A token."""
    address: str = ""
    """An address."""


class _Outer(Config):
    inner: _Inner = _Inner()
    """A table."""
    number: int = 0
    """A number."""


@pytest.mark.parametrize(
    "text",
    [
        'number = {token = "hunter2"}',
        '[inner]\ntoken = ["hunter2"]',
        '[inner]\naddress = ["postgresql://u:hunter2@h"]',
        'number = "postgresql://u:hunter2@h/d"',
        'inner = [{token = "hunter2"}]',
    ],
)
def test_no_fault_of_a_config_shows_a_secret(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(_Outer, tmp_path / "a.toml")
    assert "hunter2" not in str(caught.value) and "in a.toml" in str(caught.value)


def test_values_are_formatted_without_passwords():
    assert format_value("http://a:b@c/v1") == '"http://a:***@c/v1"'
    assert format_value({"api_key": "abc", "url": "d"}) == '{api_key = a value that is not shown, url = "d"}'


def test_the_page_of_a_run_shows_no_password():
    for value in ("http://u:hunter2@h/v1", ["http://u:hunter2@h/v1"]):
        shown = run_page._value(ConfigSetting(value=value, origin="a.toml:1"))
        assert "hunter2" not in shown and "h/v1" in shown
