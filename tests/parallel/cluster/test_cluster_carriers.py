"""The reason why Ray's collectives carry no weights to replicas: the sender of weights ends with a lost receiver."""

import os
import signal

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_nodes")]
ray = pytest.importorskip("ray")


def test_a_lost_receiver_ends_the_sender_and_a_driver_cannot_send() -> None:
    from ray.experimental.collective import create_collective_group

    class WeightHolder:  # in here: workers cannot import this module
        def pid(self) -> int:
            return os.getpid()

        def send(self) -> torch.Tensor:
            return torch.ones(1000)

        def take(self, weights: torch.Tensor) -> float:
            return float(weights.sum())

    kind = ray.remote(num_cpus=0.1, enable_tensor_transport=True)(WeightHolder)
    sender, lost, other = (kind.remote() for _ in range(3))
    create_collective_group([sender, lost, other], backend="gloo")
    send = sender.send.options(tensor_transport="gloo")
    assert ray.get(other.take.remote(send.remote())) == 1000
    with pytest.raises(ValueError, match="not supported for two-sided"):
        ray.put(torch.ones(3), _tensor_transport="gloo")
    os.kill(ray.get(lost.pid.remote()), signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(lost.take.remote(send.remote()), timeout=300)
    with pytest.raises(ray.exceptions.RayActorError):
        while ray.get(sender.pid.remote(), timeout=300):
            pass
    ray.kill(other)
