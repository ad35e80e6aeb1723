"""Blocks of environments on other machines, over a transport within this process: the same bits, the same losses."""

import hashlib
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from control_runs import SMALL
from process_worlds import WALK, end_worlds, lived, opened, same, seed_of, worlds

from hone.control import job
from hone.control.environments.make import GymConfig, describe_placement
from hone.control.environments.protocol import (
    MessageParser,
    SharedMemoryLayout,
    SharedStep,
    WorkerMessage,
    map_shared_step,
)
from hone.control.environments.remote_block import BlockHandle, BlockHost, BlockReply, BlockRequest, RemoteBlocks
from hone.control.environments.worker import EnvWorker
from hone.control.environments.worker_process import BlockProcess, EnvProcess
from hone.control.environments.world import GymWorld, open_world
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.process.child import ChildLostError
from hone.recipes.on_policy import ppo
from hone.run.loop import train

SETTINGS = {"num_envs": 5, "check": False, "step_timeout_s": 0.5}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    end_worlds()


class WorkerHere(EnvProcess):
    """A block's process that is none: its worker answers in this process."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self._worker = EnvWorker(self.memory_fd)
        self._answers: deque[WorkerMessage] = deque()

    @property
    def alive(self) -> bool:
        return self.memory_fd >= 0

    def start(self, *, pass_fds: Sequence[int] = ()) -> None: ...

    def send(self, data: bytes) -> None:
        (request,) = MessageParser().feed(data)
        self._answers.extend(MessageParser().feed(self._worker.answer(request)))

    def take_reply(self) -> WorkerMessage | ChildLostError | None:
        return self._answers.popleft() if self._answers else ChildLostError("gone")


@dataclass
class HandleHere:
    """A host in this process. `flutter` submits each request twice, as after a lost connection."""

    host: BlockHost
    flutter: bool = False
    answers: list[BlockReply] = field(default_factory=list[BlockReply])
    ended: bool = False

    def submit(self, request: BlockRequest) -> None:
        self.answers = [self.host.exchange(request) for _ in range(1 + self.flutter)][:1]

    def reply(self) -> BlockReply | ChildLostError | None:
        return self.answers.pop() if self.answers else None

    def calls(self) -> int:
        return int(self.host.process.calls[0])

    def end(self) -> None:
        self.ended = True
        self.host.process.kill()


def blocks_here(make: Callable[[], BlockProcess] = WorkerHere, *, flutter: bool = False) -> RemoteBlocks:
    clock = SystemClock()

    def open_handle() -> BlockHandle:
        process = make()
        process.start()
        return HandleHere(BlockHost(process, clock), flutter=flutter)

    return RemoteBlocks(open_handle=open_handle, wait_handles=lambda _handles, _timeout_s: None, call_s=0.5)


def remote(name: str, transport: RemoteBlocks, *, workers: int, **settings: object) -> GymWorld:
    given = {**SETTINGS, "id": name, "workers": workers, "isolation": "ray", **settings}
    world = open_world(GymConfig.model_validate(given), steps=25, seed=3, transport=transport)
    worlds.append(world)
    return world


@pytest.mark.parametrize("name", [WALK, "CartPole-v1", "Pendulum-v1"])
def test_trajectories_are_those_of_the_trainers_process_for_any_number_of_blocks(name: str) -> None:
    here = lived(opened(name, isolation="none"), 3)
    for workers, flutter in ((1, False), (2, True), (4, False)):
        there = lived(remote(name, blocks_here(flutter=flutter), workers=workers), 3)
        assert all(same(one, other) for one, other in zip(here, there, strict=True))


def ppo_digest(env: dict[str, object]) -> str:
    """Sha256 of the weights after two short iterations of PPO."""
    config = ppo.PpoConfig(
        recipe="ppo", name="x", steps=2, env=GymConfig.model_validate(env), network=SMALL, rollout_steps=24
    )
    made = ppo.ENTRY.build(config)
    policy = train(made.recipe, steps=2, callback=lambda *_: None)
    made.close()
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in policy.parameters())).hexdigest()


def test_ppo_has_the_same_weights_for_one_two_and_four_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "block_transport", lambda config: blocks_here() if config.isolation == "ray" else None)
    env = {"id": "CartPole-v1", "num_envs": 4, "check": False}
    found = {ppo_digest({**env, "isolation": "ray", "workers": blocks}) for blocks in (1, 2, 4)}
    assert found == {ppo_digest(env)}


def test_a_lost_block_starts_again_as_a_lost_process_does() -> None:
    kwargs = {"act": "_exit", "at": 31, "seed": seed_of(4)}
    process = opened(kwargs=kwargs)
    actor = remote(WALK, blocks_here(lambda: EnvProcess(SystemClock())), workers=2, kwargs=kwargs)
    pairs = zip(lived(process, 3), lived(actor, 3), strict=True)
    assert all(same(one, other) for one, other in pairs)
    assert process.pop_notices() == actor.pop_notices() != []
    assert process.metrics() == actor.metrics() == {"env/faults": 1.0}


def test_a_machine_that_is_lost_is_a_lost_block() -> None:
    handles: list[HandleHere] = []
    transport = blocks_here()

    def watched() -> BlockHandle:
        handle = transport.open_handle()
        assert isinstance(handle, HandleHere)
        handles.append(handle)
        return handle

    world = remote(WALK, RemoteBlocks(open_handle=watched, wait_handles=transport.wait_handles, call_s=0.5), workers=2)
    lived(world, 1)
    dead = handles[1]
    dead.reply = lambda: ChildLostError("its actor was lost (ActorDiedError: the node died)")
    (episodes,) = lived(world, 1)
    assert (~episodes.scored).sum() == 2  # the episodes of environments 3 and 4
    assert dead.ended and len(handles) == 3
    (note,) = world.pop_notices()
    assert "ActorDiedError: the node died" in note and "They restart with other seeds" in note


def test_only_callers_with_a_transport_take_ray() -> None:
    config = GymConfig(id="CartPole-v1", num_envs=3, isolation="ray")
    assert describe_placement(config) == "in 2 processes as actors of a Ray cluster"
    with pytest.raises(ConfigError, match=r'env\.isolation = "ray" is for recipes that open one vector environment'):
        open_world(config, steps=1, seed=0)


def test_last_observations_travel_only_where_an_episode_ended() -> None:
    layout = SharedMemoryLayout(count=2, kind="<f4", shape=[3], action=[])
    step = map_shared_step(mmap.mmap(-1, layout.total_bytes()), layout)

    class Stepped(WorkerHere):
        def map_step(self, layout: SharedMemoryLayout) -> SharedStep:
            return step

        def send(self, data: bytes) -> None:
            self._answers.append(WorkerMessage(head={}))

    host = BlockHost(Stepped(), SystemClock())
    chosen = np.zeros(16, np.uint8).tobytes()

    def arrays(number: int, head: bytes) -> set[str]:
        reply = host.exchange(BlockRequest(number=number, data=head, chosen=chosen, call_s=1))
        (message,) = MessageParser().feed(reply.data)
        return set(message.arrays)

    assert arrays(1, b'{"do":"map","layout":{"count":2,"kind":"<f4","shape":[3],"action":[]}}\n') == set()
    assert arrays(2, b'{"do":"step"}\n') == {"seen", "reward", "terminated", "truncated"}
    step.truncated[1] = True
    assert arrays(3, b'{"do":"step"}\n') == {"seen", "reward", "terminated", "truncated", "final"}
