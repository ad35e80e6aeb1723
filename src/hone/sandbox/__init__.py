"""Runs code that nobody should trust, such as a model's: in a process that reaches nothing and leaves nothing.

Belongs here: what a program may use (`frames`), the rungs of confinement, strongest first (`rungs`), the warm process
that forks one for each call (`zygote`, `supervisor`), what runs in it (`program`, `examiner`, `remote`), how values
cross between a program and its tests (`bridge`, `crossing`, `mirrors`), the caller's end (`run`), and the battery of
hostile programs (`battery`). Does not: what a result is worth (`rewards`), or how a policy asks for it (`text.tools`).
"""
