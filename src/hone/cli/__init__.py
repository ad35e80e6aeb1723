"""The command `hone`.

Belongs here: reading config files and command lines, calling the loops, and showing what they say. Faces decide
nothing: whatever a command finds out is found out in the folder that it calls.
"""
