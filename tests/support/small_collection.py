"""A small collection of answers: what `warm_grpo` mixes into its batches."""

import json
from collections.abc import Sequence
from pathlib import Path

from hone.models.language.tokenizers import character_tokenizer, vocabulary_hash
from hone.text.tasks.collection import FOLDER, CollectedAnswer, collection_bytes


def write_collection(folder: Path, alphabet: str, solved: Sequence[str]) -> None:
    """For each question with its answer, the last letter of `solved`, that answer, which nobody drew, and a wrong one,
    the first letter of the alphabet, which was drawn."""
    tokenizer = character_tokenizer([alphabet])
    rows: list[CollectedAnswer] = []
    for group, one in enumerate(solved):
        question, right = one[:-1], one[-1]
        asked = tokenizer.encode(question).tolist()
        for sample, (letter, logp) in enumerate([(right, float("nan")), (alphabet[0], -1.5)]):
            rows.append(
                CollectedAnswer(
                    id=question, prompt=json.dumps(question), columns=json.dumps({"answer": right}), group=group,
                    sample=sample, completion=letter, tokens=[*asked, *tokenizer.encode(letter), tokenizer.eos_id],
                    at=[len(asked), len(asked) + 1], logp=[logp] * 2, version=[0, 0], score=float(letter == right),
                    status="scored", rewards={}, truncated=False, labels=None, steps=None,
                )
            )  # fmt: skip
    (folder / FOLDER).mkdir(parents=True)
    content = collection_bytes(rows, vocabulary=vocabulary_hash(tokenizer))
    (folder / FOLDER / "step_00000001.parquet").write_bytes(content)
