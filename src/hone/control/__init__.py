"""Wing of control: environments, networks, replay, tables, finite processes, logs, evaluation.

Imports neither `text` nor `decide`; `docs/project/architecture.md` has the map.
"""
