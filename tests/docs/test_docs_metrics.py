"""The page of metrics lists every name in the source, and no other."""

from pathlib import Path

import pytest
from metric_names import all_names, listed, variable_parts
from metrics_page import plain, written_by

OTHER_STRINGS = {
    "application/json": "a media type",
    "1/100": "a factor between units",
    "1/1000": "the same",
    "proc/meminfo": "a file of Linux",
    "infos/{}": "a group in Minari's files",
    "{}/{}": "a random stream, or a name inside a file",
    "{}/ws": "an address",
    "{}/schema": "an address",
    "search/subsets": "a random stream",
    "mixer/first": "a random stream",
    "mixer/first_bias": "a random stream",
    "mixer/second": "a random stream",
    "mixer/value": "a random stream",
    "textarena/seat": "a random stream",
    "textarena/random": "a random stream",
    "infos/action_log_probs": "a group in D4RL's files",
    "{}/encoder": "a random stream",
    "client/config": "an address",
    "client/dynamic_config": "an address",
    "sessions/search": "an address",
    "{}/publish": "an address",
    "{}/ttl": "an address",
    "{}/external_weights_urls": "an address",
    "{}/forward_backward": "an address",
    "{}/retrieve_future": "an address",
    "{}/healthz": "an address",
    "text/plain": "a media type",
    "text/javascript": "a media type",
    "text/css": "a media type",
    "text/html": "a media type",
    "image/png": "a media type",
    "time/total_s": "read where present; no part writes it",
    "time/elapsed_s": "read where present; no part writes it",
    "doors/maze": "a random stream",
    "doors/questions": "a random stream",
    "doors/walks": "a random stream",
    "grid/map": "a random stream",
    "batch/v1": "a version of Kubernetes' interface",
    "hone/tenant": "a label in Kubernetes",
    "hone/job": "a label in Kubernetes",
    "return/mean": "read where present; no part writes it",
    "loss/mean": "read where present; no part writes it",
    "episodes/return": "read where present; no part writes it",
}
"""Strings in the source that look like metrics and are none, with the reason."""


def test_every_name_in_the_source_is_listed() -> None:
    known = {plain(name) for name in all_names()} | set(OTHER_STRINGS)
    found = {name: places for name, places in written_by().items() if name not in known}
    missing = {name: places for name, places in found.items() if not listed().fullmatch(name)}
    assert missing == {}, "add them to src/hone/run/store/metrics.toml, with unit and meaning"


def test_every_listed_name_is_in_the_source() -> None:
    there = written_by()
    assert [name for name in all_names() if plain(name) not in there and not name.startswith("task{")] == []
    assert [name for name in OTHER_STRINGS if name not in there] == [], "strike these"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("reward/mean", True),
        ("critic/loss", True),
        ("time/collect_s", True),
        ("task3/reward/mean", True),
        ("meta/reward_after_2", True),
        ("eval/mcts_50/seat1/low", True),
        ("eval/seat0/return", True),
        ("reward/median", False),
        ("critic/weight", False),
        ("unknown/loss", False),
    ],
)
def test_the_catalogue_knows_names_that_vary(name: str, known: bool) -> None:
    assert (listed().fullmatch(name) is not None) == known
    assert "policy" in variable_parts()["phase"]


def test_a_run_cannot_write_a_metric_that_is_not_listed(tmp_path: Path) -> None:
    from hone.run import run as driver

    writer, _ = eval("open_metrics(path)", vars(driver), {"path": tmp_path / "metrics.jsonl"})  # as the driver calls it
    writer.append(1, {"reward/mean": 1.0})
    with pytest.raises(AssertionError, match="reward/median"):
        writer.append(2, {"reward/median": 1.0})
    writer.close()
