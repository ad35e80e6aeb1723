"""A shop in one program: visitors arrive, the service decides, some click. `python shop.py`."""

from pathlib import Path

import numpy as np

from hone.api import serve_decisions

CLICKS = {"banner": {"de": 0.1, "fr": 0.5}, "mail": {"de": 0.6, "fr": 0.1}, "none": {"de": 0.0, "fr": 0.0}}
draws = np.random.default_rng(0)

with serve_decisions(Path(__file__).with_name("shop.toml")) as shop:
    clicks = 0
    for visitor in range(600):
        country = "de" if draws.random() < 0.5 else "fr"
        decided = shop.decide(f"visitor-{visitor}", {"age": float(draws.integers(18, 80)) / 100, "country": country})
        if draws.random() < CLICKS[decided.action][country]:
            clicks += shop.reward(decided.id, 1.0).status == "joined"
        else:
            shop.reward(decided.id, 0.0)
    print(f"{clicks} clicks of 600 visitors; an equal share of offers would get about 130")
    print(f"the last decision: {decided.action}, probability {decided.probability:.3f}, version {decided.version}")
    print(f"{len(shop.view().table)} decisions in the log of {shop.folder}")
