"""Random shapes through the training kernels in a build with sanitizers; run by test_models_native.py in a process."""

import itertools

import test_models_native as cases
import test_models_products as product_cases
import torch

from hone.core.errors import ConfigError
from hone.models.native import library
from hone.models.native import library as products


def main() -> None:
    path = library.build(checked=True).path
    checked = library.open_kernels(path)
    library._loaded = lambda: checked  # pyright: ignore[reportAttributeAccessIssue] - instead of the usual build
    for isa, kind in itertools.product(library.ISA_NAMES, (torch.float32, torch.bfloat16)):
        try:
            library.open_kernels(path, isa)
        except ConfigError:
            continue
        for rows, width in ((1, 64), (65, 72), (130, 7)):
            cases.test_a_norm_of_a_sum(isa, rows, width, kind)
            cases.test_a_gate(isa, rows, width, kind)
        for shape, normed in itertools.product([(4, 4, 64), (4, 2, 10), (3, 1, 24)], [False, True]):
            cases.test_attention(isa, shape, normed, kind)
        for shape in ((1, 32, 32), (33, 96, 32), (1061, 64, 96)):
            cases.test_the_gradient_of_a_weight(isa, *shape)
    products._MIN_MULTIPLICATIONS, products._MIN_SIZE = 0, 1  # pyright: ignore - small products too
    for isa in ("avx512_bf16", "amx"):
        try:
            library.open_kernels(path, isa)
        except ConfigError:
            continue
        for shape in product_cases.SHAPES:
            product_cases.test_a_product_of_rounded_numbers_sums_in_float32(shape)
    for shape in product_cases.SHAPES:
        product_cases.check(*shape)
    print("ok")


if __name__ == "__main__":
    main()
