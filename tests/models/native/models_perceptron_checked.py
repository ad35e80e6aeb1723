"""Shapes through the compiled perceptron in a build with sanitizers; run by test_models_perceptron.py in a process."""

import test_models_perceptron as cases

from hone.models.native import perceptron


def main() -> None:
    checked = perceptron.open_functions(perceptron.build(checked=True).path)
    perceptron._loaded = lambda: checked  # pyright: ignore[reportAttributeAccessIssue] - instead of the usual build
    for sizes, rows in (
        ([1, 32, 32, 1], 32),
        ([4, 40, 33, 1], 77),
        ([128, 64, 100, 32], 300),
        ([3, 64, 96, 40, 50, 2], 257),
    ):
        cases.check(sizes, rows)
    print("ok")


if __name__ == "__main__":
    main()
