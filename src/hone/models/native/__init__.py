"""The trainer's compiled kernels for a CPU: what lies between the matrix products of a decoder, in fewer passes.

Belongs here: their C++ (`source/`), and their torch functions with gradients. Everything has a form in plain torch
beside it in `models`, which is used on other devices, in float64, and where there is no compiler.
"""
