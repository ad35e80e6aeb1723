"""The command `hone`.

Belongs here: reading config files and command lines, calling the library, and printing results. A command contains no
logic of its own: the results come from the package that it calls.
"""
