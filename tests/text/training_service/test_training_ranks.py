"""The trainer over ranks: the bits of one process, with all of them, without one that was killed, and on Ray."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_parts import TestClient, TrainingService, WireClient, adapter_bytes, text_datum

from hone.core.errors import ConfigError
from hone.process.child import ChildProcess
from hone.text.training_service.row_ranks import ranks_of_rows
from hone.text.training_service.run_training_service import plan_lines
from hone.text.training_service.service_config import ServedBaseConfig, TrainingServiceConfig

Serve = Callable[..., tuple[TrainingService, TestClient]]
TEXTS = ("the cat sat", "on a mat in the sun", "two and two", "is four, they say", "so", "and on")


def test_rows_go_to_the_rank_in_whose_share_their_middle_lies() -> None:
    cases = {(4, 4, 4, 4): [0, 0, 1, 1], (1, 1, 6): [0, 0, 1], (5,): [0], (1, 7): [0, 1], (9, 1): [0, 1]}
    for sizes, owners in cases.items():
        assert ranks_of_rows(np.array(sizes), 2) == owners
    assert ranks_of_rows(np.array([7, 1, 1]), 3) == [1, 2, 2]


def lesson(client: WireClient, model: str, other: str) -> list[bytes]:
    """Two adapters' calls, with gradients and without, and a step of the first."""
    rows = [text_datum(text) for text in TEXTS]
    weighted = [text_datum(TEXTS[1], logprobs=[-4.0] * 18, advantages=[0.5] * 18)]
    asked = [client.send_pass(model, rows), client.send_pass(other, rows[:3]), client.send_pass(other, weighted, "ppo")]
    results = [client.result(one) for one in asked]
    client.step(model, learning_rate=1e-2)
    return [*results, client.result(client.send_pass(model, rows[:2], forward_only=True))]


def taught(serve: Serve, folder: Path, between: Callable[[TrainingService], None], **more: Any) -> tuple[Any, ...]:
    service, http = serve(folder, **more)
    client = WireClient(http)
    models = client.model(rank=4), client.model(rank=2, number=1, train_unembed=False)
    results = lesson(client, *models)
    between(service)
    return results + lesson(client, *models), [adapter_bytes(service, model) for model in models]


def test_two_ranks_have_the_bits_of_one_process_also_when_the_other_is_killed(
    serve: Serve, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = taught(serve, tmp_path / "alone", lambda service: None)

    def kill(service: TrainingService) -> None:
        ranks = service.trainer.ranks
        assert ranks is not None and ranks.size == 2 and ranks.core_s > 0, "the other rank computed"
        child = ranks.peers.children[1]
        assert isinstance(child, ChildProcess) and child.pid is not None
        os.kill(child.pid, signal.SIGKILL)

    assert taught(serve, tmp_path / "ranks", kill, run={"ranks": 2}) == alone
    assert "rank 0 computes all rows from here on" in capfd.readouterr().err


@pytest.mark.slow
def test_a_rank_on_ray_has_the_bits_of_one_process(serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    alone = taught(serve, tmp_path / "alone", lambda service: None)

    def look(service: TrainingService) -> None:
        assert service.trainer.ranks is not None and service.trainer.ranks.core_s > 0

    cluster = {"address": "local", "learner": {"cpus": 0.5}}
    assert taught(serve, tmp_path / "ray", look, run={"ranks": 2}, cluster=cluster) == alone


def test_the_plan_says_where_rows_are_computed_and_what_is_not_served() -> None:
    def config(**tables: Any) -> TrainingServiceConfig:
        return TrainingServiceConfig(model=ServedBaseConfig(path="x", whole=tables.pop("whole", False)), **tables)

    assert "shared by 3 ranks: this process and child processes" in plan_lines(config(run={"ranks": 3}))[1]
    on_ray = config(run={"ranks": 2}, cluster={"address": "auto", "learner": {"cpus": 2}})
    assert "processes of Ray (auto)" in plan_lines(on_ray)[1] and "no tenants" in plan_lines(on_ray)[2]
    both = plan_lines(config(run={"ranks": 2}, cluster={"rollout": {"replicas": 3, "spares": 1, "cpus": 2}}))
    assert "this process and child processes" in both[1]
    assert both[2] == (
        "samples are drawn by 3 and 1 spares on this machine, each 2 CPUs, 2 threads = 8 CPUs, each with the base and "
        "up to 16 answers at a time; bits are those of one process"
    )
    for words, tables in {
        "run.tensor": {"run": {"ranks": 2, "tensor": 2}},
        "run.virtual_ranks": {"run": {"virtual_ranks": 2}},
        "run.ranks with model.whole": {"run": {"ranks": 2}, "whole": True},
        "cluster.learner places the ranks": {"cluster": {"learner": {"cpus": 1}}},
        "cluster.rollout.gpus": {"cluster": {"rollout": {"gpus": 1}}},
        "cluster.rollout.mixed": {"cluster": {"rollout": {"mixed": True}}},
        "cluster.learner.gpus": {"run": {"ranks": 2}, "cluster": {"learner": {"gpus": 1}}},
    }.items():
        with pytest.raises((ConfigError, ValueError), match=words):
            config(**tables)
