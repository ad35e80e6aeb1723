"""Training of agents that call an OpenAI-compatible address: their requests become episodes of drawn tokens.

Belongs here: sessions of agents (`dialogue_tree`), the desk between their requests and the engine (`capture_desk`), the
routes (`capture_app`), and episodes of a step (`capture_world`). Does not: how answers are drawn (`engine`).
"""
