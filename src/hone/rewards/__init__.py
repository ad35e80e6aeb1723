"""Rewards: an answer -> a score with a reason. Functions are computed in processes that can be killed.

Belongs here: reward functions (the user's and the built-in ones), the workers that run them, and their results.
Does not: environments that ask for rewards (`envs`), advantages (`credit`). The trainer imports no user code.

`config` names rewards, `scorer` adds them up, `workers` runs functions (`jobs` cuts batches, `worker` is the child
process, `functions` loads and calls), `scores` holds results, `budget` stops a run in which
too many are missing. Reward models and servers are wired in `text/evaluate/reward_members.py`.
`exact_match`, `math_answer`, `reasoning_gym` and `code_tests` are built in; only workers import them.
"""
