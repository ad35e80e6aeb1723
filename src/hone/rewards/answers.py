"""The answer inside a completion, and the simplest verifier: is it the one expected?"""

import re

from hone.rewards.functions import completion_text
from hone.rewards.mathematics.words import word_key

ANSWER_TAG = r"(?s)<answer>(.*?)</answer>"
AFTER_EQUALS = r"=([^=\n]*)$"


def extract_answer(completion: str, pattern: str = "") -> str:
    """The answer in a completion, without surrounding whitespace.

    Without a pattern: the last line that is not blank. With one: its last match (the first group where it has one).
    No match is an empty answer: a completion without the required form is wrong, and so has a score.
    """
    if not pattern:
        return completion.strip().rpartition("\n")[2].strip()
    matches = list(re.finditer(pattern, completion))
    if not matches:
        return ""
    return (matches[-1].group(1 if matches[-1].re.groups else 0) or "").strip()


def exact_match(
    completion: object,
    answer: object,
    pattern: str = "",
    words: bool = False,  # noqa: FBT001, FBT002 - passed by name from the config's options
) -> float | dict[str, object]:
    """1.0 when the extracted answer is the column `answer`, letter for letter, else 0.0.

    With `words`, case, the number of spaces, and full stops and quotation marks at the ends do not matter. Without a
    reference the score is missing: an empty answer must not be right.
    """
    reference = "" if answer is None else str(answer).strip()
    if not reference:
        return {"score": None, "reason": "the reference answer is empty"}
    extracted = extract_answer(completion_text(completion), pattern)
    if words:
        return float(word_key(extracted) == word_key(reference))
    return float(extracted == reference)
