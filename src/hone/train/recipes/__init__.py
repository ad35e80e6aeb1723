"""One file per algorithm. A file names its parts: a config, and `build`, which wires source, credit and learner.

To add an algorithm, add a file here that ends in `ENTRY = Entry(...)`; its name is the recipe's name in configs.
"""
