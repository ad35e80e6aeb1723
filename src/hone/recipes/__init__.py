"""Recipes: one folder for each family, one file for each algorithm. A file names its parts and wires them.

To add an algorithm, add a file to the folder of its family that ends in `ENTRY = Entry(...)`; its name is the recipe's
name in configs.
"""
