"""The compiled CPU runner: C++ sources, their build at first use, and the `ModelRunner` that calls them.

Belongs here: what runs a decoder's passes without torch. `source/` holds the C++; it is compiled by the system's
compiler into the user's cache, and nothing here compiles when it is imported.
"""
