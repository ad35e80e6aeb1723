"""Identity of a vocabulary: tokens that were drawn by one policy mean the same to another."""

import json
from hashlib import sha256

from hone.models.language.tokenizers import Tokenizer


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """sha256 of all tokens with their ids: equal for tokenizers whose tokens mean the same."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()
