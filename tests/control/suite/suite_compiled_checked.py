"""Every compiled world in a build with sanitizers; run by test_suite_compiled.py in a process."""

import numpy as np

from hone.control.suite import compiled_worlds
from hone.native.build import load_functions


def main() -> None:
    path = compiled_worlds.build_worlds(checked=True).path
    functions = load_functions(path, compiled_worlds.LIBRARY_LABEL, compiled_worlds._SIGNATURES)
    # instead of the usual build
    compiled_worlds._functions = lambda: functions  # pyright: ignore[reportAttributeAccessIssue]
    for world in compiled_worlds._WORLDS:
        env = compiled_worlds.CompiledVectorEnv(world, 7, max_episode_steps=90)
        env.reset(seed=2)
        env.action_space.seed(2)
        for _ in range(1500):
            seen, *_ = env.step(env.action_space.sample())
            assert np.isfinite(seen).all()
    print("ok")


if __name__ == "__main__":
    main()
