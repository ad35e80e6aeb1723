"""The compiled CPU runner: C++ sources, their build at first use, and the `ModelRunner` that calls them.

It runs a decoder without torch. `source/` holds the C++; the system's compiler builds it into the user's cache, not at
import.
"""
