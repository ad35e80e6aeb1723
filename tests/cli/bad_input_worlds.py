"""Rows 54-58 of the table: environments."""

from functools import partial

from bad_input import Case, Stage, checkpoints, logged, metrics, no_run, ppo

import hone.control.evaluate.returns


def lost(how: str, *, times: int = 1) -> None:
    """So often an environment was lost, the log says how, and every step was learned from."""
    assert sum(line["env/faults"] for line in metrics()) == times
    assert len(metrics()) == 12
    for text in ("WARNING environment 0 (seed", "the lost steps are not trained on", how):
        logged(text)


def short_judgements(stage: Stage) -> None:
    stage.patch(hone.control.evaluate.returns, "evaluation_limit", lambda _: 500)


def saved_where_it_stopped() -> None:
    """The seventh step is the one in which it was lost."""
    assert checkpoints()[-1] == "step_00000006"
    assert [line["step"] for line in metrics()] == [1, 2, 3, 4, 5, 6]


def none_lost() -> None:
    assert not any(line["env/faults"] for line in metrics())


def only_truncated() -> None:
    """Every end was the limit's, and none was taken for the world's own."""
    told = [line for line in metrics() if line["episodes/ended"]]
    assert told
    assert all(line["episodes/truncated"] == 1 and line["reward/mean"] == 20 for line in told)


CASES = [
    Case(row=54, name="observation that is no number", code=4, config=ppo("NanAtOnce"), words=["--dry-run"],
         says=["bad_worlds.py:NanAtOnce: reset(seed=", "not finite: [nan, nan]"]),
    Case(row=54, name="observation that is no number, later", code=4, config=ppo("NanLater"), keeps=False,
         says=["observation of environment 0 at step", "is not finite: [nan, nan]", "run seed 0", "last actions"]),
    Case(row=54, name="observation of another shape", code=4, config=ppo("WrongShape"),
         says=["observation of shape [3]; the space has [2]"]),
    Case(row=54, name="observation of another type", code=4, config=ppo("WrongType"),
         says=["observation of type float64; the space has float32", "astype"]),
    Case(row=54, name="observation outside its space", code=4, config=ppo("Outside"),
         says=["step 0 (environment 0, seed", "observation [0] = 7.0 outside -1.0 .. 1.0"]),
    Case(row=55, name="actions outside their box", code=2,
         config=ppo("BoxOfActions").replace("[evaluation]", "clip_actions = false\n[evaluation]"),
         says=["env.clip_actions = false", "set it to true"]),
    Case(row=56, name="reset of the old interface", code=4, config=ppo("OldReset"),
         says=["reset(seed=", "must return the tuple (observation, info)"]),
    Case(row=56, name="step of the old interface", code=4, config=ppo("OldStep"),
         says=["step() returned 4 values", "before Gym 0.26", "(observation, reward, terminated, truncated, info)"]),
    Case(row=56, name="no reward", code=4, config=ppo("NoReward"),
         says=["reward is None (NoneType); it must be a number"]),
    Case(row=56, name="infinite reward", code=4, config=ppo("InfiniteReward"),
         says=["reward is inf; it must be finite"]),
    Case(row=56, name="an end that is no bool", code=4, config=ppo("DoneIsANumber"),
         says=["terminated is 0 (int); it must be a bool"]),
    Case(row=56, name="an observation without a part of its space", code=4, config=ppo("Nested"),
         says=["has no part 'a'"]),
    Case(row=56, name="no actions", code=2, config=ppo("NoActions"), says=["action space", "has no elements"]),
    Case(row=56, name="no bounds for a squashed policy", code=2, config=ppo("Unbounded", "sac"),
         says=["has no finite bounds", "TransformAction"]),
    Case(row=56, name="no such class", code=2, config=ppo("Goood"),
         says=["has no class or function 'Goood'; did you mean Good?"]),
    Case(row=56, name="no such file", code=2, config=ppo("Good").replace("bad_worlds.py", "worlds.py"),
         says=["no such file"]),
    Case(row=57, name="cannot be made", code=4, config=ppo("CannotBeMade"), traceback=True, ours=True, then=no_run,
         says=["the environment cannot be made: OSError: no licence for the simulator"]),
    Case(row=57, name="fails at once", code=4, config=ppo("FailsAtOnce"), traceback=True, ours=True,
         says=["step 0 (environment 0, seed", "RuntimeError: the simulator fell over"]),
    Case(row=57, name="fails later", code=4, config=ppo("FailsLater"), traceback=True, ours=True, keeps=False,
         says=["failed in the environment", "run seed 0, last actions", "RuntimeError: the simulator fell over"]),
    Case(row=57, name="segfaults later", code=0, config=ppo("SegfaultsLater"), keeps=False, says=["finished run"],
         then=partial(lost, "its process was killed by SIGSEGV; it printed: Fatal Python error: Segmentation fault")),
    Case(row=57, name="leaves later", code=0, config=ppo("LeavesLater"), keeps=False, says=["finished run"],
         then=partial(lost, "its process exited with code 7; it printed: the licence has run out")),
    Case(row=57, name="hangs later", code=0, config=ppo("HangsLater"), keeps=False, says=["finished run"],
         words=["env.step_timeout_s=0.5"], then=partial(lost, "no answer within 0.5 s (env.step_timeout_s)")),
    Case(row=57, name="hangs in a reset", code=0, config=ppo("SleepsInReset"), keeps=False, says=["finished run"],
         words=["env.step_timeout_s=0.5"], then=partial(lost, "no answer within 0.5 s (env.step_timeout_s)")),
    Case(row=57, name="a hundred times slower", code=0, config=ppo("SlowLater"), keeps=False, says=["finished run"],
         words=["env.step_timeout_s=0.5"], then=none_lost),
    Case(row=57, name="takes its process down at once", code=5, config=ppo("DiesAtOnce"), then=no_run,
         says=["bad_worlds.py:DiesAtOnce: the environment cannot be used", "exited with code 9"]),
    Case(row=57, name="takes its process down at reset", code=5, config=ppo("DiesAtReset"), words=["--dry-run"],
         says=["bad_worlds.py:DiesAtReset: the environment cannot be used", "exited with code 9"]),
    Case(row=57, name="dies at every step", code=5, config=ppo("DiesAtOnce"), keeps=False,
         words=["env.check=false", "env.faults_allowed=2"],
         says=["lost 3 times within 10000 steps, allowed are 2 (env.faults_allowed)", "environment 0 (seed",
               "exited with code 9", "--resume"]),
    Case(row=57, name="dies again and again", code=5, config=ppo("LeavesLater"), keeps=False,
         words=["env.faults_allowed=0"],
         says=["lost 1 time within 10000 steps", "the licence has run out", "--resume"],
         then=saved_where_it_stopped),
    Case(row=58, name="never ends", code=0, config=ppo("NeverEnds"), words=["--dry-run"],
         says=["no end within 200 random steps and no time limit", "env.max_episode_steps"]),
    Case(row=58, name="never ends, with a limit", code=0, config=ppo("NeverEnds"), keeps=False,
         words=["env.max_episode_steps=20"], hides=["no end within"], says=["finished run"],
         then=only_truncated),
    Case(row=58, name="never ends in a judgement", code=0, config=ppo("NeverEnds"), keeps=False,
         words=["steps=1"], prepare=short_judgements, says=["finished run"],
         then=partial(logged, "did not end within 500 steps and were cut there; set env.max_episode_steps")),
]  # fmt: skip
