"""A visitor with features in the store, one without, and a store that changes after the decision.

Run beside shop.toml, after `hone service shop.toml --features rows.jsonl`.
"""

from hone.api import serve_decisions

with serve_decisions("shop.toml") as shop:
    known = shop.decide("ada", {"hour": 14.0})
    print(f"ada: {known.action} by version {known.version}")
    unknown = shop.decide("zoe", {"hour": 14.0})
    print(f"zoe: {unknown.action} by version {unknown.version}, {unknown.intervention}")

    shop.put_features("visitor", {"ada": {"spent_30d": 500.0}})
    served = shop.view().table.contexts[-2]
    print(f"the log has what was served: spent_30d = {served[1]:g}")
