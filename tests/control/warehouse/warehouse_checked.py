"""Warehouses in a build with sanitizers; run by test_warehouse_floor.py in a process."""

import numpy as np

from hone.control.warehouse import envs, floor
from hone.native.build import NativeSource, build, load_functions


def main() -> None:
    source = NativeSource(name="warehouse", description=floor.LABEL, folder=floor.FOLDER, files=(), instruction_sets=())
    functions = load_functions(build(source, checked=True).path, floor.LABEL, floor._SIGNATURES)
    floor.functions = envs.functions = lambda: functions  # pyright: ignore[reportAttributeAccessIssue]
    draws = np.random.default_rng(1)
    for options in ({"floor": "tiny", "robots": 3, "difference": 60}, {"floor": "small", "robots": 8, "sensor": 1}):
        env = envs.WarehouseVectorEnv(2, limit=120, **options)
        _, info = env.reset(seed=1)
        for _ in range(60):
            actions = np.array([draws.choice(np.flatnonzero(legal)) for legal in info["action_mask"]])
            seen, *_, info = env.step(actions)
            assert np.isfinite(seen).all()
    one = floor.Floor(floor.floor_spec("large", robots=16, requests=40), 2)
    for _ in range(60):
        one.move(draws.integers(0, 5, 16))
    print("ok")


if __name__ == "__main__":
    main()
