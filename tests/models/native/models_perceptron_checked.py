"""Shapes through the compiled perceptron in a build with sanitizers; run by test_models_perceptron.py in a process."""

import test_models_perceptron as cases

from hone.core.errors import ConfigError
from hone.models.native import perceptron

SHAPES = (
    ([1, 32, 32, 1], 32),
    ([4, 40, 33, 1], 77),
    ([128, 64, 100, 32], 300),
    ([3, 64, 96, 40, 50, 2], 257),
)


def main() -> None:
    path = perceptron.build(checked=True).path
    for isa in perceptron.ISA_NAMES:
        try:
            checked = perceptron.open_functions(path, isa)
        except ConfigError:  # another processor's
            continue
        # instead of the usual build
        perceptron._loaded = lambda functions=checked, **_: functions  # pyright: ignore[reportAttributeAccessIssue]
        for sizes, rows in SHAPES:
            for tanh in (False, True) if isa != "amx" else (False,):
                cases.check(sizes, rows, tanh=tanh)
            if checked["hone_rounds"]():
                cases.check_rounded(sizes, rows)
    print("ok")


if __name__ == "__main__":
    main()
