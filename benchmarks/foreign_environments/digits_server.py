"""An OpenEnv server: say the digit that is shown, twice. Arguments: port, and sessions at the same time.

Run by an interpreter that has `openenv-core`; it knows nothing of hone.
"""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class SaidAction(Action):
    text: str


class ShownObservation(Observation):
    digit: str


class Digits(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.digit, self.turn = 0, 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.digit, self.turn = (seed or 0) % 4, 0
        return ShownObservation(digit=str(self.digit), done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self.turn += 1
        right = action.text.strip() == str(self.digit)
        self.digit = (self.digit + 1) % 4
        return ShownObservation(digit=str(self.digit), reward=0.5 * right, done=self.turn == 2)

    @property
    def state(self):
        return State(step_count=self.turn)


if __name__ == "__main__":
    app = create_fastapi_app(Digits, SaidAction, ShownObservation, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
