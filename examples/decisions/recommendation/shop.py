"""A day in the shop: 3,000 visitors, one a second; a click is told 200 seconds later on average, one in ten never.

Writes shop/decisions.db and prints the command that judges it. Run beside shop.toml.
"""

from hone.api import serve_decisions
from hone.decide.simulators.recommendation import DeliveryConfig, RecommendationWorld, SimulatedClock

DELIVERY = DeliveryConfig(mean_delay_s=200.0, lost=0.1, twice=0.05)
world = RecommendationWorld(rounds=3_000, seed=1, items=5, features=4, delivery=DELIVERY)
clock, shown, late = SimulatedClock(), dict[int, str](), world.deliveries()

with serve_decisions("shop.toml", clock=clock) as shop:
    for number in range(world.rounds):
        clock.time_s = clock.begin_s + number
        shown[number] = shop.decide(f"u{number % 300}", world.visitor(number), id=f"d{number}").action
        while late and late[0].at_s < number + 1:
            told = late.pop(0)
            click = world.clicks[told.round, world.actions.names.index(shown[told.round])]
            shop.reward(f"d{told.round}", float(click), at_s=clock.begin_s + told.happened_s)

names = world.actions.names
share = sum(world.rates[number, names.index(item)] for number, item in shown.items()) / world.rounds / world.oracle
print(f"clicks: {share:.0%} of those of the best item of each visitor")
print(
    f"hone log shop/decisions.db --window 800 --rule first --as-of {clock.begin_s + world.rounds:.0f} --report log.html"
)
