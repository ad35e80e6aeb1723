"""Compiled code: from a folder of C++ to a library in the user's cache.

Belongs here: compiler, flags, cache folder, loading, and shared headers (`include/`). The sources are with the package
that calls them. Independent of torch and of models.
"""
