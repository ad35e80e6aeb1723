"""One episode under several dispatchers, and its page.

hone train examples/warehouse/dispatch.toml --name dispatch     trains one
python examples/warehouse/replay.py                              writes warehouse.html
"""

from pathlib import Path

from hone.control.networks.checkpoint import load_policy
from hone.control.warehouse.dispatcher import choose_nearest, policy_chooser, random_chooser
from hone.control.warehouse.floor import Floor, floor_spec
from hone.control.warehouse.replay_page import record_episode, write_replay_page

spec = floor_spec("small", robots=8, requests=16)
choosers = {"nearest first": choose_nearest, "random": random_chooser(100)}
trained = sorted(Path("runs/dispatch/checkpoints").glob("step_*/policy"))
if trained:
    choosers = {"learnt": policy_chooser(load_policy(trained[-1]), spec), **choosers}
records = [record_episode(Floor(spec), choose, seed=100, name=name) for name, choose in choosers.items()]
write_replay_page(Path("warehouse.html"), records)
for record in records:
    state = record.floor.state
    print(f"{record.name}: {state['deliveries']} deliveries, {record.per_hour:.0f} an hour, "
          f"{state['collisions']} collisions, longest stand {state['longest_still']} steps")  # fmt: skip
