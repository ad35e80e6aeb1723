"""Verifiers: an answer -> a score with a reason, worked out in processes that can be killed.

Belongs here: reward functions (the user's and a few of our own), the workers that run them, and their verdicts.
Does not: worlds that ask for rewards (`envs`), advantages (`credit`). Nothing of the user's is imported by the trainer.

`config` names functions, `workers` runs them (`jobs` cuts batches, `process` and `worker` are the two ends of one pipe,
`wire` is what they say, `functions` loads and calls), `scores` holds verdicts, `budget` says when too many
are missing.
`exact_match`, `math_answer` and `reasoning_gym` are the functions that come along; they are imported by workers only.
"""
