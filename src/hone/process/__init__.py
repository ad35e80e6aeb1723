"""Child processes that run user code, what confines them, and the loader of the user's files.

Belongs here: the life of a child and its channel (`child`), the end of all its descendants (`descendants`), the child's
own end of the channel (`parent`), messages (`wire`), what Linux offers to confine a process (`linux`, `landlock`,
`seccomp`) and its use for reward functions (`confine`), and names of the form `file.py:name` (`user_files`). Does not:
what is sent.
"""
