"""PPO's minibatch in a build with sanitizers; run by test_ppo_one_call.py in a process."""

import test_ppo_one_call as cases

from hone.core.errors import ConfigError
from hone.models.native import perceptron


def main() -> None:
    path = perceptron.build(checked=True).path
    for isa in perceptron.ISA_NAMES[:2]:
        try:
            checked = perceptron.open_functions(path, isa)
        except ConfigError:  # another processor's
            continue
        # instead of the usual build
        perceptron._loaded = lambda functions=checked, **_: functions  # pyright: ignore[reportAttributeAccessIssue]
        for kind in cases.KINDS:
            for hidden, rows, inputs in (([32, 32], 32, 1), ([40, 33], 77, 4), ([64, 96, 40], 257, 128)):
                cases.check(kind, hidden, rows, inputs=inputs)
    print("ok")


if __name__ == "__main__":
    main()
