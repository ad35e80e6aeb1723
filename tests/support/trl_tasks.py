"""Tools and environments as TRL's documentation writes them (1.16: the GRPO trainer's chapter on agents; OpenEnv's)."""

import random


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b


tools = [multiply, async_add]


class IncrementEnv:
    # Reserved methods
    def reset(self, **kwargs) -> str | None:  # required; called at the start of each rollout
        self.counter = 0
        self.target = random.randint(1, 6)  # self-sample the task
        return f"Increment the counter by {self.target}."  # returned string becomes the prompt

    def get_reward(self) -> float:  # optional: the environment scores itself from its own state
        return float(self.counter == self.target)

    # Public methods (exposed as tools)
    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class EchoEnvClient:
    """In the place of the documentation's client of a server."""

    def step(self, message: str) -> tuple[float, str]:
        return len(message) / 10, message


class EchoToolEnv:
    def __init__(self):
        self.env = EchoEnvClient()
        self.reward = 0.0

    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        return None

    def echo(self, message: str) -> str:
        """
        Echo the message back from the environment.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        reward, echoed = self.env.step(message)
        self.reward = reward
        return echoed


def reward_func(environments, **kwargs):
    return [env.reward for env in environments]


class WordEnv:
    """The rules of the documentation's WordleEnv, with a word of the row."""

    def reset(self, word, **kwargs) -> str | None:
        self.word, self.reward, self.done = word, 0.0, False
        return " Guess it."

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as '[abcde]'

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        self.done = guess == f"[{self.word}]"
        self.reward = float(self.done)
        return "right" if self.done else "wrong"


class AsyncEnv:
    async def reset(self, start: int) -> None:
        self.count = start

    async def get_reward(self) -> float:
        return float(self.count)

    async def add(self, number: int) -> None:
        """Add.

        Args:
            number: The number.
        """
        self.count += number
