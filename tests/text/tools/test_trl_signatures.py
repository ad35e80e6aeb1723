"""TRL's `tools=`, `environment_factory=` and rewards of environments run unchanged, on the examples of its pages."""

from pathlib import Path

import pytest

from hone.core.dialogue import PolicyTurn, ToolCall
from hone.core.errors import UserCodeError
from hone.text.dialogues.hosted import LoadedWorld, WorldSpec, load_world
from hone.text.tools.loading import ToolUse
from hone.text.tools.toolbox import ToolWorld

TASKS = Path(__file__).resolve().parents[2] / "support" / "trl_tasks.py"


def trl(name: str) -> str:
    return f"{TASKS}:{name}"


def called(name: str, turns_left: int = 3, **arguments) -> PolicyTurn:
    return PolicyTurn(text="call", calls=(ToolCall(name=name, arguments=arguments),), turns_left=turns_left)


def world_of(loaded: LoadedWorld) -> ToolWorld:
    world = loaded.new()
    assert isinstance(world, ToolWorld)
    return world


def test_tools() -> None:
    loaded = load_world(WorldSpec(tools=(ToolUse(use=trl("tools")),)))
    assert [one.name for one in loaded.tools.schemas] == ["multiply", "async_add"]
    assert not loaded.describe().begins
    world = world_of(loaded)
    said = PolicyTurn(
        text="", calls=tuple(ToolCall(name=name, arguments={"a": 6, "b": 7}) for name in ("multiply", "async_add"))
    )
    assert [one["content"] for one in world.answer(said).messages] == ["42", "13"]
    assert world.answer(PolicyTurn(text="42")).done
    world.close()


def test_an_environment_that_owns_data_and_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_world(WorldSpec(reference=trl("IncrementEnv")))
    described = loaded.describe()
    assert [one.name for one in described.schemas] == ["increment"]
    assert described.begins
    assert described.pays
    for step, reward in ((3, 1.0), (2, 0.0)):
        monkeypatch.setattr("random.randint", lambda low, high: 3)
        world = world_of(loaded)
        assert world.begin({"seed": 1, "prompt": ""}, 0).messages == [
            {"role": "user", "content": "Increment the counter by 3."}
        ]
        assert world.answer(called("increment", step=step)).messages[0]["content"] == str(step)
        ended = world.answer(PolicyTurn(text="done"))
        assert (ended.done, ended.reward) == (True, reward)


def test_the_last_turn_is_scored_too() -> None:
    world = world_of(load_world(WorldSpec(reference=trl("IncrementEnv"))))
    (asked,) = world.begin({}, 0).messages
    target = int(str(asked["content"])[-2])
    assert world.answer(called("increment", step=target, turns_left=1)).reward == 0.0
    last = world.answer(called("increment", step=0, turns_left=0))
    assert (last.done, last.reward) == (False, 1.0)


def test_a_reward_function_of_environments() -> None:
    loaded = load_world(WorldSpec(tools=(ToolUse(use=trl("EchoToolEnv")),), reward=trl("reward_func")))
    assert loaded.describe().pays
    world = world_of(loaded)
    assert world.begin({"prompt": "Echo 'Hello'."}, 0).messages == ()
    assert world.answer(called("echo", message="Hello")).messages[0]["content"] == "Hello"
    assert world.answer(PolicyTurn(text="done")).reward == 0.5


def test_columns_reach_reset_and_its_text_follows_the_question() -> None:
    spec = WorldSpec(tools=(ToolUse(use=trl("WordEnv")),), reward=trl("reward_func"))
    world = world_of(load_world(spec))
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A word of 5 letters."}]
    begun = world.begin({"prompt": prompt, "word": "crane", "seed": 3}, 0)
    assert [one["content"] for one in begun.messages] == ["Be brief.", "A word of 5 letters. Guess it."]
    assert prompt[1]["content"] == "A word of 5 letters.", "the row stays as it is"
    assert world.answer(called("guess", guess="[slate]")).messages[0]["content"] == "wrong"
    assert world.answer(called("guess", guess="[crane]")).messages[0]["content"] == "right"
    (told,) = world.answer(called("guess", guess="[slate]")).messages
    assert told["content"] == "Error: ValueError: Game over."
    assert world.answer(PolicyTurn(text="crane")).reward == 1.0


def test_async_methods_share_an_event_loop() -> None:
    world = world_of(load_world(WorldSpec(reference=trl("AsyncEnv"))))
    assert world.begin({"start": 4, "prompt": ""}, 0).messages == ()
    assert world.answer(called("add", number=3)).messages[0]["content"] == ""
    assert world.answer(PolicyTurn(text="")).reward == 7.0
    world.close()


def test_faults(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "class Reset:\n    def reset(self):\n        return 5\n    def f(self) -> str:\n        return ''\n"
        "def reward(environments):\n    return ['good']\n"
    )
    bad = f"{tmp_path / 'bad.py'}:"
    with pytest.raises(UserCodeError, match="reset returned a int; it returns text or None"):
        world_of(load_world(WorldSpec(reference=bad + "Reset"))).begin({}, 0)
    scored = WorldSpec(tools=(ToolUse(use=trl("EchoToolEnv")),), reward=bad + "reward")
    world = world_of(load_world(scored))
    world.begin({"prompt": "x"}, 0)
    with pytest.raises(UserCodeError, match="the reward is 'good', expected a number"):
        world.answer(PolicyTurn(text=""))
    with pytest.raises(UserCodeError, match="pays its own rewards: leave it out"):
        load_world(WorldSpec(reference="hone.text.games.guess:GuessingGame", reward=trl("reward_func")))
