"""An arena: a queue of parties, ratings in a file, and a practice mode at a target rate.

python examples/decisions/players/arena.py            a few seconds; writes arena.html and arena.db
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from hone.api import match
from hone.core.random import generator
from hone.decide.simulators.players import LevelWorld, PlayerWorld
from hone.decide.simulators.recommendation import SimulatedClock

world, clock = PlayerWorld(players=90, seed=7, smurfs=3), SimulatedClock()
queue = match.MatchQueue(clock=clock, rules=match.PairingRules(team_size=3, max_wait_s=30.0))
number = {name: k for k, name in enumerate(world.names)}
watched = [world.names[int(k)] for k in np.argsort(world.skills)[[0, 30, 60, 86]]]
waits, imbalances, histories = list[float](), list[float](), defaultdict[str, list[tuple[float, match.Rating]]](list)
busy_until, games = dict.fromkeys(world.names, 0.0), 0
ratings = match.open_ratings("arena.db")
known = sum(player.games for player in ratings.players()) // 6
chance = generator(7, "arena")
for second in range(600):
    idle = [world.names[k] for k in chance.permutation(90) if busy_until[world.names[k]] <= second]
    while idle and chance.random() < 0.7:
        party = [idle.pop() for _ in range(min(len(idle), int(chance.choice([1, 2, 3], p=[0.6, 0.25, 0.15]))))]
        queue.join(party)
        busy_until.update(dict.fromkeys(party, np.inf))
    for offer in queue.offer(ratings.ratings(world.names)):
        game = queue.start(offer)
        waits.append(clock.time_s - min(party.since_s for team in game.teams for party in team))
        imbalances.append(game.imbalance)
        one, other = (tuple(number[name] for name in team) for team in game.players)
        first_won = world.wins(one, other, known + games)
        result = match.GameResult(
            id=f"game {known + games}", teams=game.players, ranks=(0, 1) if first_won else (1, 0), at_s=clock.now_s()
        )
        ratings.record([result])
        games += 1
        for name in (name for team in game.players for name in team):
            busy_until[name] = second + 20
            if name in watched:
                histories[name].append((float(second), ratings.ratings([name])[name]))
    clock.time_s += 1.0

print(f"{games} matches after {known} earlier ones; 95% waited at most {np.quantile(waits, 0.95):.0f} s")
settled = len(imbalances) // 2
print(f"imbalance expected of a match: {np.mean(imbalances[:settled]):.3f}, later {np.mean(imbalances[settled:]):.3f}")
strongest = sorted(ratings.players(), key=lambda player: -player.rating.mean)[:3]
print("strongest:", ", ".join(f"{player.name} ({player.rating.mean:.1f})" for player in strongest))

practice, levels = match.Difficulty(target=0.65), LevelWorld(levels=21, seed=7)
sessions: list[list[float]] = []
for player in range(20):
    sessions.append([])
    for turn in range(60):
        level = practice.choose(f"player {player}", round=turn).action
        sessions[-1].append(levels.chance(player, level, turn))
        practice.record(f"player {player}", level, passed=levels.plays(player, level, turn)[0])
print(f"practice: {np.mean([abs(p - 0.65) for session in sessions for p in session[20:]]):.3f} from the target")
match.write_match_page(
    Path("arena.html"), f"{games} matches, three against three", waits_s=waits, imbalances=imbalances,
    histories=histories, chances=sessions,
)  # fmt: skip
