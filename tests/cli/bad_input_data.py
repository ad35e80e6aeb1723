"""Rows 19-36 and 42-46 of the table: models, tokenizers, checkpoints, datasets, rewards."""

import gzip
import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bad_input import (
    CHAT,
    FOLDER,
    LONG,
    NEW,
    PROMPTS,
    REWARDS,
    RUN,
    Case,
    cut,
    edit,
    finished,
    flip,
    grpo,
    lines,
    logged,
    missing,
    model,
    nan_weights,
    no_run,
    sft,
    spoiled,
    surplus_rows,
    without,
)


def use(name: str, more: str = "") -> str:
    return f'rewards.functions=[{{use = "{REWARDS}:{name}"{more}}}]'


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt": ["say 1", "say 2"]}), sink)
    return sink.getvalue().to_pybytes()


def more_steps(stage) -> None:
    stage.finished_run()
    shutil.rmtree(RUN / "checkpoints")
    (RUN / "checkpoints").mkdir()


PAD_IS_EOS = partial(edit, "tokenizer_config.json", lambda content: content.update(pad_token="<eos>"))
TOO_LARGE = partial(edit, "tokenizer.json", lambda content: content["model"]["vocab"].update({"é": 500}))
RESUMED = ["--resume", "steps=3"]

MODELS = [
    Case(row=19, name="no such folder", code=3, config=grpo('[model]\npath = "nowhere/at/all"\n'),
         says=["model folder 'nowhere/at/all' does not exist (looked at /"]),
    Case(row=19, name="name of a model on the Hub", code=3, config=grpo('[model]\npath = "Qwen/Qwen3-0.6B"\n'),
         says=["the Hub's model 'Qwen/Qwen3-0.6B', which is no folder here", "HF_HUB_OFFLINE is set", "hf download"]),
    Case(row=19, name="no tokenizer, found in a dry run", code=3, config=grpo(FOLDER), words=["--dry-run"],
         prepare=partial(model, change=partial(without, "tokenizer.json")),
         says=["model/tokenizer.json does not exist"]),
    Case(row=20, name="tokenizer larger than the model", code=3, config=grpo(FOLDER), words=["--dry-run"],
         prepare=partial(model, change=TOO_LARGE),
         says=["model: the tokenizer's largest id is 500 ('é'), but the model knows ids 0 to "]),
    Case(row=20, name="model larger than the tokenizer", code=0, config=grpo(FOLDER), keeps=False,
         prepare=partial(model, change=surplus_rows),
         says=["finished run"]),
    Case(row=21, name="padding is the end of text", code=0, config=sft(FOLDER), keeps=False,
         words=["steps=150", "learner.lr=0.02", "run.checkpoint_every=0", "task.source=one.jsonl",
                "run.log_every=50"],
         files={"one.jsonl": lines([{"prompt": "ask", "completion": "so"}])},
         prepare=partial(model, change=PAD_IS_EOS), says=["pads with its end of text", "learned all the same"],
         then=lambda: end_of_text_is_learned()),
    Case(row=22, name="conversations without a template", code=3, config=grpo(FOLDER), words=["--dry-run"],
         files={"prompts.jsonl": CHAT}, prepare=model,
         says=["no chat template", "chat_template.jinja", "prompts as text"]),
    Case(row=22, name="conversations with a new model", code=0, files={"prompts.jsonl": CHAT}, keeps=False,
         says=["finished run"]),
    Case(row=23, name="a prompt that is too long", code=3, files={"prompts.jsonl": LONG}, words=["--dry-run"],
         says=["1 of 5 prompts are longer than the 60 tokens", "long (70 tokens)", "task.on_long_prompt"]),
    Case(row=23, name="a prompt that is too long, dropped", code=0, files={"prompts.jsonl": LONG}, keeps=False,
         words=["task.on_long_prompt=drop"], says=["1 of 5 prompts", "long (70 tokens) (dropped)"]),
    Case(row=23, name="a prompt that is too long, truncated", code=0, files={"prompts.jsonl": LONG}, keeps=False,
         words=["task.on_long_prompt=truncate", "rollout.prompts_per_step=5"], says=["(their ends are kept)"]),
    Case(row=23, name="every prompt is too long", code=3, words=["task.on_long_prompt=drop", "rollout.max_tokens=60"],
         says=["4 of 4 prompts are longer than the 4 tokens"]),
    Case(row=23, name="no room for any prompt", code=2, words=["rollout.max_tokens=64"],
         says=["max_tokens fills the model's context and leaves 0 tokens"]),
    Case(row=23, name="an example that is too long", code=3, config=sft(), words=["model.new.max_positions=8"],
         files={"pairs.jsonl": lines([{"id": "long", "prompt": "say 1", "completion": "x" * 9}])},
         says=["1 of 1 examples are longer than the model's context of 8 tokens: long (15 tokens)"]),
    Case(row=23, name="characters without a token", code=3, words=["--dry-run"],
         files={"prompts.jsonl": lines([{"prompt": "caf\xe9"}])}, says=["the tokenizer has no token for 'é'"]),
    Case(row=24, name="no tokens", code=2, words=["rollout.max_tokens=0"], says=["rollout.max_tokens", ">= 1, got 0"]),
    Case(row=24, name="empty stop text", code=2, words=['rollout.stop=["\\n", ""]'], says=["rollout.stop.1", 'got ""']),
    Case(row=25, name="newest checkpoint cut short", code=0, prepare=partial(spoiled, spoil=[cut]), words=RESUMED,
         keeps=False, says=["checkpoint skipped", "step_00000002/policy/model.safetensors has", "bytes, expected",
                            "resuming from runs/run/checkpoints/step_00000001"]),
    Case(row=25, name="a bit flipped", code=0, prepare=partial(spoiled, spoil=[flip]), words=RESUMED, keeps=False,
         says=["checkpoint skipped", "has sha256", "resuming from runs/run/checkpoints/step_00000001"]),
    Case(row=25, name="a file missing", code=0, prepare=partial(spoiled, spoil=[Path.unlink]), words=RESUMED,
         keeps=False, says=["model.safetensors is missing", "resuming from runs/run/checkpoints/step_00000001"]),
    Case(row=25, name="no whole checkpoint", code=3, prepare=partial(spoiled, spoil=[cut, flip]), words=["--resume"],
         says=["no intact checkpoint in runs/run/checkpoints", "step_00000002", "step_00000001"]),
    Case(row=25, name="no checkpoint at all", code=3, prepare=more_steps, words=["--resume"],
         says=["no checkpoint in runs/run/checkpoints", "cannot be resumed", "give a new --name"]),
    Case(row=30, name="weights that are no numbers", code=3, config=grpo(FOLDER),
         prepare=partial(model, change=nan_weights),
         says=["model/model.safetensors: tensor model.norm.weight holds 16 NaN or infinite numbers"]),
]  # fmt: skip


def end_of_text_is_learned() -> None:
    """The policy says what it was shown, and stops."""
    import numpy as np

    from hone.core.generation import Request, SamplingParams, generate
    from hone.text.evaluate.engine_actor import make_engine
    from hone.text.evaluate.open_policy import ModelSource, open_policy

    policy = open_policy(ModelSource(path=str(RUN)), seed=0, device="cpu", temperature=1.0)
    assert policy.tokenizer.pad_id == policy.tokenizer.eos_id
    engine = make_engine(policy, slots=1, longest_prompt=3, max_tokens=8, seed=0)
    request = Request(
        id="q", prompt=policy.tokenizer.encode("ask"), samples=1, sampling=SamplingParams(max_tokens=8, greedy=True)
    )
    (said,) = generate(engine, [request])
    assert (policy.tokenizer.decode(said.tokens), said.finish_reason) == ("so", "eos")
    assert np.count_nonzero(said.tokens == policy.tokenizer.eos_id) == 1


def put(stage, put) -> None:
    """Something else in the place of the prompts."""
    Path("prompts.jsonl").unlink()
    put("prompts.jsonl")


BAD_ROWS = lines([{"prompt": "say 1"}, {"prompt": None}, {"prompt": "  "}, {"prompt": 7}, {"prompt": "say 2"}])

DATA = [
    Case(row=31, name="empty file", code=3, files={"prompts.jsonl": b""}, says=["prompts.jsonl: the file is empty"]),
    Case(row=31, name="no rows", code=3, files={"prompts.jsonl": b"\n\n"}, says=["prompts.jsonl: has no rows"]),
    Case(row=31, name="all rows dropped", code=3, words=["task.on_bad_row=drop"],
         files={"prompts.jsonl": lines([{"prompt": ""}, {"prompt": " "}])},
         says=["`prompt` is empty or only whitespace in 2 of 2 rows: 1, 2", "all 2 rows were dropped"]),
    Case(row=32, name="missing column", code=3, files={"prompts.jsonl": lines([{"promt": "say 1", "answer": "1"}])},
         says=["no column 'prompt'", "columns found: promt, answer", "did you mean promt?"]),
    Case(row=32, name="nothing to imitate", code=3, config=sft(), files={"pairs.jsonl": PROMPTS},
         says=["no column 'completion'", "prompts with completions"]),
    Case(row=32, name="column of a reward function", code=4, words=[use("wants_answer_key")],
         says=["reward function 'wants_answer_key' asks for a column 'anser'", "did you mean answer?"]),
    Case(row=32, name="all faults at once", code=3, config=grpo(NEW.replace("max_positions = 64", "max_positions = 8")),
         words=["task.source=nowhere.jsonl", use("no_such")],
         says=["nowhere.jsonl: no such file"]),
    Case(row=32, name="data and rewards at once", code=3, words=[use("no_such"), "rollout.max_tokens=60"],
         says=["4 of 4 prompts are longer", "has no 'no_such'"]),
    Case(row=33, name="bad prompts", code=3, files={"prompts.jsonl": BAD_ROWS},
         says=["`prompt` is null or missing in 1 of 5 rows: 2", "only whitespace in 1 of 5 rows: 3",
               "`prompt` is a int", "rows: 4", 'on_bad_row = "drop"']),
    Case(row=33, name="bad prompts, dropped", code=0, files={"prompts.jsonl": BAD_ROWS}, keeps=False,
         words=["task.on_bad_row=drop"], says=["in 1 of 5 rows: 2 (dropped)", "rows: 4 (dropped)"]),
    Case(row=34, name="gzip under the name of JSON Lines", code=3, files={"prompts.jsonl": gzip.compress(PROMPTS)},
         says=["prompts.jsonl is compressed by gzip: decompress it (gunzip)"]),
    Case(row=34, name="a link to nothing", code=3, prepare=partial(put, put=partial(os.symlink, "gone.jsonl")),
         says=["prompts.jsonl is a link to gone.jsonl, which does not exist"]),
    Case(row=34, name="a pipe", code=3, prepare=partial(put, put=os.mkfifo),
         says=["prompts.jsonl is a pipe, which can be read only once"]),
    Case(row=34, name="not UTF-8", code=3, files={"prompts.jsonl": PROMPTS + b'{"prompt": "caf\xe9"}\n'},
         says=["prompts.jsonl:5:", "not UTF-8: byte 0xe9"]),
    Case(row=34, name="last line cut off", code=3, files={"prompts.jsonl": PROMPTS[:-5]},
         says=["prompts.jsonl:4:", "the last line is cut off"]),
    Case(row=34, name="not JSON", code=3, files={"prompts.jsonl": b"{'prompt': 1}\n" + PROMPTS},
         says=["prompts.jsonl:1:1: not JSON"]),
    Case(row=34, name="mixed newlines", code=0, words=["--dry-run"],
         files={"prompts.jsonl": PROMPTS.replace(b"\n", b"\r\n", 1).replace(b"\n", b"\r", 2)}, says=["sequences"]),
    Case(row=35, name="parquet cut off", code=3, words=["task.source=p.parquet"], files={"p.parquet": parquet()[:-9]},
         says=["p.parquet: footer missing", "still being written"]),
    Case(row=35, name="parquet that is none", code=3, words=["task.source=p.parquet"], files={"p.parquet": PROMPTS},
         says=["p.parquet: not a parquet file"]),
    Case(row=36, name="ids that repeat", code=3, files={"prompts.jsonl": PROMPTS + PROMPTS.splitlines(True)[1]},
         says=["1 ids repeat: 'q1' in rows 2 and 5", "fix them"]),
    Case(row=36, name="rows that repeat, without ids", code=0, words=["--dry-run"],
         files={"prompts.jsonl": lines([{"prompt": "say 1"}] * 3)}, says=["2 rows repeat an earlier row"]),
]  # fmt: skip

LOOSE = ["user_code.missing_allowed=1.0", "rollout.samples_per_prompt=2"]

JUDGES = [
    Case(row=42, name="NaN within the budget", code=0, words=[use("some_nan")], keeps=False,
         says=["finished run"], then=partial(missing, 0.25)),
    Case(row=42, name="NaN beyond the budget", code=4, words=[use("some_nan"), "rollout.samples_per_prompt=100"],
         says=["of the last 200 answers have no score", "for example unscorable",
               "the function returned nan"], then=no_run),
    Case(row=42, name="infinity beyond the budget", code=4,
         words=[use("some_infinite"), "rollout.samples_per_prompt=100"],
         says=["of the last 200 answers have no score", "the function returned inf"]),
    Case(row=43, name="no score, ever", code=4, words=[use("nothing_ever"), "steps=4"], keeps=False,
         says=["no answer in 3 batches in a row has a score: there is nothing to learn from", "returned None"]),
    Case(row=44, name="too few values", code=4, words=[use("too_few")],
         says=["reward function 'too_few' returned 3 values for 4 completions"], then=no_run),
    Case(row=44, name="one value", code=4, words=[use("scalar")],
         says=["returned a float for 4 completions; expected a list of numbers"]),
    Case(row=44, name="text", code=4, words=[use("text")], says=["returned a str for 4 completions"]),
    Case(row=44, name="list of texts", code=4, words=[use("texts")],
         says=["returned a str (good) where a number or None is expected"]),
    Case(row=44, name="a table", code=4, words=[use("table")], says=["returned a dict for 4 completions"]),
    Case(row=44, name="numpy and bool", code=0, words=[use("numpy_and_bool")], keeps=False, says=["finished run"],
         then=finished),
    Case(row=44, name="outside its bounds", code=4, words=[use("huge", ", bounds = [0.0, 1.0]")],
         says=["reward function 'huge' gave 1e+30, outside its bounds [0.0, 1.0]"]),
    Case(row=45, name="always raises", code=4, words=[use("raises")], traceback=True, then=no_run,
         says=["reward function 'raises' failed on all 4 answers of its first batch", "ValueError: no digits",
               'bad_rewards.py"']),
    Case(row=45, name="raises once", code=0, words=[use("raises_once"), *LOOSE], keeps=False, traceback=True,
         says=["a reward function failed", "ValueError: no digits in the answer", "finished run"],
         then=lambda: (missing(0.25), logged("ValueError: no digits"))),
    Case(row=46, name="hangs once", code=0, words=[use("hangs_once"), *LOOSE, "user_code.deadline_s=0.4"], keeps=False,
         says=["finished run"], then=partial(missing, 0.25)),
    Case(row=46, name="hangs always", code=4, words=[use("hangs"), *LOOSE, "user_code.deadline_s=0.1"],
         says=["no answer within user_code.deadline_s = 0.1 s; the worker was killed"]),
    Case(row=46, name="leaves", code=0, words=[use("exits_once"), *LOOSE], keeps=False, says=["finished run"],
         then=partial(missing, 0.25)),
    Case(row=46, name="prints, moves away and changes its inputs", code=0, words=[use("spoils_everything")],
         keeps=False,
         says=["finished run"], then=finished),
]  # fmt: skip

CASES = [*MODELS, *DATA, *JUDGES]
