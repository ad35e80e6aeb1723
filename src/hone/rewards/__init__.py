"""Rewards: an answer -> a score with a reason. Functions are computed in processes that can be killed.

Does not belong here: environments that ask for rewards, advantages (`credit`). The trainer imports no user code.

`config` names rewards, `scorer` adds them up, `workers` runs functions (`worker` is the child process, `functions`
loads and calls), `scores` holds results, `score_watch` stops a run in which too many are missing. Reward models and
servers are wired in `text/evaluate/reward_members.py`. Only workers import the built-in functions.
"""
