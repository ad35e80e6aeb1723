"""The process that runs environments: `python -m hone.control.environments.worker`, started by `process.child`.

It answers one message with one message. Before each call of an environment it writes the environment's number into the
shared memory, so that the trainer knows which one crashed or hung.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from hone.control.environments.check import check_env, check_spaces
from hone.control.environments.make import (
    EnvFactory,
    GymConfig,
    GymEnv,
    GymVectorEnv,
    autoreset_mode,
    describe_exception,
    env_factory,
    reset_each,
)
from hone.control.environments.masks import VectorMasks, mask_place
from hone.control.environments.protocol import (
    HEADER_BYTES,
    MessageParser,
    SharedMemoryLayout,
    SharedStep,
    WorkerMessage,
    encode,
    map_shared_step,
    space_to_json,
    state_from_message,
    state_to_message,
)
from hone.control.environments.snapshot import EncodedAttributes, attribute_texts, restore, snapshot, why_inexact_resume
from hone.core.errors import HoneError, ResourceError, UserCodeError
from hone.core.out_of_memory import out_of_memory
from hone.process.parent import connect_to_parent


class _CallMarkingEnv(gymnasium.Env[Any, Any]):
    """An environment that marks each of its calls beforehand."""

    def __init__(self, env: GymEnv, mark: Callable[[], None]) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self._mark = mark

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._mark()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:  # noqa: ANN401 - the user's
        self._mark()
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()


class EnvWorker:
    """Answers the trainer's messages; holds `k` environments after `make`."""

    def __init__(self, memory_fd: int) -> None:
        self._memory_fd = memory_fd
        self._calls = np.frombuffer(mmap.mmap(memory_fd, HEADER_BYTES), np.int64, count=2)
        self._first = 0
        self._factory: EnvFactory | None = None
        self._envs: GymVectorEnv | None = None
        self._shared: SharedStep | None = None
        self._masks: VectorMasks | None = None
        """Legal actions after the last call; None before the first reset."""
        self._constant: EncodedAttributes = {}
        self._answers: dict[str, Callable[[WorkerMessage], bytes]] = {
            "load": self._load,
            "inspect": self._inspect,
            "exact": self._exact,
            "make": self._make,
            "reset": self._reset,
            "remember": self._remember,
            "map": self._map,
            "step": self._step,
            "snapshot": self._snapshot,
            "restore": self._restore,
        }

    def answer(self, message: WorkerMessage) -> bytes:
        """Run a call; an exception of the user's code is a reply too."""
        try:
            return self._answers[message.head["do"]](message)
        except HoneError as fault:
            return encode({"fault": type(fault).__name__, "messages": fault.messages})
        except Exception as fault:  # noqa: BLE001 - the user's
            if what := out_of_memory(fault):
                where = f"{self._running_env()}: {what}; lower env.num_envs or env.workers"
                return encode({"fault": ResourceError.__name__, "messages": [where]})
            where = f"{self._running_env()} failed: {describe_exception(fault)}"
            return encode({"fault": UserCodeError.__name__, "messages": [where]})

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()

    def _running_env(self) -> str:
        number = int(self._calls[1])
        return "they" if number < 0 else f"environment {self._first + number}"

    def _mark_call(self, number: int) -> None:
        self._calls[1] = number
        self._calls[0] += 1

    def _make_one(self, number: int, single: Callable[[], GymEnv]) -> GymEnv:
        self._mark_call(number)
        return _CallMarkingEnv(single(), partial(self._mark_call, number))

    def _load(self, message: WorkerMessage) -> bytes:
        if (registration := message.head["registration"]) is not None:
            spec = EnvSpec.from_json(registration)
            gymnasium.registry.setdefault(spec.id, spec)
        self._first = message.head["first"]
        self._factory = env_factory(GymConfig.model_validate(message.head["config"]))
        return encode({"native": self._is_native()})

    def _marked_factory(self) -> EnvFactory:
        """The user's factory, with marked calls."""
        assert self._factory is not None
        return replace(self._factory, make_one=partial(self._make_one, 0, self._factory.make_one))

    def _inspect(self, message: WorkerMessage) -> bytes:
        making, request = self._marked_factory(), message.head
        env = making.make_one()
        try:
            check_spaces(making.name, env.observation_space, env.action_space, squashed=request["squashed"])
            spaces = [space_to_json(env.observation_space), space_to_json(env.action_space)]
        finally:
            env.close()
        notes = check_env(making, seed=request["seed"]) if request["check"] else []
        return encode({"spaces": spaces, "notes": notes})

    def _exact(self, message: WorkerMessage) -> bytes:
        self._mark_call(0)
        return encode({"inexact": why_inexact_resume(self._marked_factory().make_many, seed=message.head["seed"])})

    def _make(self, message: WorkerMessage) -> bytes:
        making, count = self._marked_factory(), message.head["count"]
        self._mark_call(-1)
        assert self._factory is not None
        self._envs = making.make_from(
            [partial(self._make_one, number, self._factory.make_one) for number in range(count)], first=self._first
        )
        seen, action = self._envs.single_observation_space, self._envs.single_action_space
        check_spaces(making.name, seen, action, squashed=message.head["squashed"])
        return encode(
            {
                "spaces": [space_to_json(seen), space_to_json(action)],
                "autoreset": autoreset_mode(self._envs).value,
                "form": type(self._envs).__name__,
            }
        )

    def _reset(self, message: WorkerMessage) -> bytes:
        envs, mask = self._made_envs(), message.arrays.get("mask")
        if self._is_native():
            self._mark_call(-1)
        if mask is not None:
            seen, info = envs.reset(options={"reset_mask": mask})
            if self._masks is not None:
                self._masks.after_reset(info, mask.astype(np.bool_), where="a reset")
        else:
            seen, self._masks = reset_each(envs, message.head["seeds"])
        if self._masks is None or self._masks.now is None:
            return encode({}, {"seen": np.asarray(seen)})
        return encode({"mask_place": mask_place(envs)}, {"seen": np.asarray(seen), "mask": self._masks.now})

    def _remember(self, message: WorkerMessage) -> bytes:
        del message
        self._mark_call(0)
        self._constant = attribute_texts(self._made_envs())
        return encode({})

    def _map(self, message: WorkerMessage) -> bytes:
        layout = SharedMemoryLayout(**message.head["layout"])
        self._shared = map_shared_step(mmap.mmap(self._memory_fd, layout.total_bytes()), layout)
        return encode({})

    def _step(self, message: WorkerMessage) -> bytes:
        envs, here = self._made_envs(), self._shared
        assert here is not None
        if self._is_native():
            self._mark_call(-1)
        action = here.actions(message.head["kind"], message.head["shape"]).copy()  # an environment may keep it
        seen, reward, terminated, truncated, info = envs.step(action)
        here.seen[:], here.reward[:], here.terminated[:], here.truncated[:] = seen, reward, terminated, truncated
        if "final_obs" in info:
            for number in np.flatnonzero(np.logical_or(here.terminated, here.truncated)):
                here.final[number] = info["final_obs"][number]
        if self._masks is not None and self._masks.now is not None:
            self._masks.after_step(info, where="a step")
            which = np.flatnonzero(np.logical_or(here.terminated, here.truncated))
            if len(which):
                here.final_mask[which] = self._masks.last(info, which, same_step="final_obs" in info)
            here.mask[:] = self._masks.now
        return _DONE

    def _snapshot(self, message: WorkerMessage) -> bytes:
        del message
        self._mark_call(0)
        saved = state_to_message(snapshot(self._made_envs(), self._constant))
        return encode(saved.head, saved.arrays)

    def _restore(self, message: WorkerMessage) -> bytes:
        self._mark_call(0)
        restore(self._made_envs(), state_from_message(message))
        return encode({})

    def _made_envs(self) -> GymVectorEnv:
        assert self._envs is not None
        return self._envs

    def _is_native(self) -> bool:
        assert self._factory is not None
        return self._factory.make_native is not None


_DONE = encode({})


def main() -> NoReturn:
    """Entry point of the worker process: serves one block of environments until its input closes."""
    channel = connect_to_parent()
    memory_fd = int(channel.arguments[0])
    os.set_inheritable(memory_fd, False)
    worker, parser = EnvWorker(memory_fd), MessageParser()
    for data in channel.chunks():
        for message in parser.feed(data):
            channel.reply(worker.answer(message))
    worker.close()
    os._exit(0)  # nothing that a user's library left running may keep this process


if __name__ == "__main__":
    main()
