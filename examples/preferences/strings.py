"""Data of the preference examples: strings of letters to imitate, and prompts for training and for the judgement.

    python examples/preferences/strings.py

writes strings.jsonl, prompts.jsonl and held_out.jsonl into the working folder. A prompt is the first three letters of a
string; those of held_out.jsonl are in neither of the other files.
"""

import json
from itertools import product
from pathlib import Path

from hone.core.random import generator
from hone.lab.tasks.letter_pairs import LETTERS, strings_to_imitate

PROMPT = 3
HELD_OUT = 128


def write(name: str, rows: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


prompts = ["".join(letters) for letters in product(LETTERS, repeat=PROMPT)]
order = generator(0, "example/prompts").permutation(len(prompts))
held_out = {prompts[place] for place in order[:HELD_OUT]}
strings = [text for text in strings_to_imitate(8000, seed=0) if text[:PROMPT] not in held_out]
write("strings.jsonl", [{"prompt": text[:PROMPT], "completion": text[PROMPT:]} for text in strings])
write("prompts.jsonl", [{"prompt": prompt} for prompt in prompts if prompt not in held_out])
write("held_out.jsonl", [{"prompt": prompt} for prompt in sorted(held_out)])
