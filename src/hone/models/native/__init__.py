"""Compiled CPU kernels for training: the operations between the matrix products of a decoder, in fewer passes.

Their C++ (`source/`), and their torch functions with gradients. Each has a plain torch form in `models`, which is used
on other devices, in float64, and without a compiler.
"""
