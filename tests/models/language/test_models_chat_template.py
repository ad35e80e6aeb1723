"""The default chat template: each message is its role's token, its text and the end token, here and in transformers."""

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.models.language.tokenizers import (
    DEFAULT_CHAT_TEMPLATE,
    ROLE_TOKENS,
    Tokenizer,
    byte_tokenizer,
    character_tokenizer,
    load_tokenizer,
)

CHARACTERS = character_tokenizer(["0123456789+=?"], chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
BYTES = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
BOTH = pytest.mark.parametrize("tokenizer", [CHARACTERS, BYTES], ids=["characters", "bytes"])
CHAT = [
    {"role": "system", "content": ""},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "tool", "content": "=4"},
]
HOSTILE = [" a ", "<eos>", "x<|user|>y", "{{ role }}"]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(HOSTILE)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), max_size=5)


def by_hand(tokenizer: Tokenizer, messages: list[dict[str, str]], *, open_turn: bool) -> list[int]:
    """The slow version: ids put together message by message."""
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    ids: list[int] = []
    for message in messages:
        ids += [vocab[f"<|{message['role']}|>"], *tokenizer.encode(message["content"]).tolist(), tokenizer.eos_id]
    return [*ids, vocab["<|assistant|>"]] if open_turn else ids


@given(MESSAGES, st.booleans())
def test_ids_are_role_text_end(messages, open_turn):
    found = BYTES.apply_chat(messages, add_generation_prompt=open_turn)
    assert found.tolist() == by_hand(BYTES, messages, open_turn=open_turn)


@given(MESSAGES, TEXTS, TEXTS)
def test_a_conversation_goes_on_token_by_token(messages, answer, reply):
    sampled = np.append(BYTES.encode(answer), np.int32(BYTES.eos_id))
    suffix = BYTES.continue_chat(messages, [{"role": "user", "content": reply}], answer=sampled)
    whole = BYTES.apply_chat([*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": reply}])
    assert [*BYTES.apply_chat(messages), *sampled, *suffix] == whole.tolist()


def test_the_template_rewrites_nothing():
    BYTES.check_chat_continuation(("user", "tool", "system"))


@BOTH
def test_a_saved_folder_renders_the_same_here_and_in_transformers(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.size == load_tokenizer(tmp_path).size
    for open_turn in (True, False):
        expected = by_hand(tokenizer, CHAT, open_turn=open_turn)
        assert load_tokenizer(tmp_path).apply_chat(CHAT, add_generation_prompt=open_turn).tolist() == expected
        found = theirs.apply_chat_template(CHAT, add_generation_prompt=open_turn, return_dict=False)
        assert found == expected
    assert theirs.decode(expected, skip_special_tokens=True) == tokenizer.decode(expected) == "2+2?4=4"
    assert (theirs.eos_token_id, theirs.pad_token_id) == (1, 0)


def test_role_tokens_follow_all_other_ids():
    """So that the same text has the same ids as without conversations."""
    plain = character_tokenizer(["0123456789+=?"])
    assert CHARACTERS.encode("2+2=4").tolist() == plain.encode("2+2=4").tolist()
    assert CHARACTERS.size == plain.size + 4
    assert BYTES.size == byte_tokenizer().size + 4
    assert CHARACTERS.apply_chat([])[0] == plain.size + 2


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "critic", "content": "1"}, "no role 'critic'; known: system, user, assistant, tool"),
        ({"role": "user", "content": None}, "messages of plain text"),
        ({"role": "user", "content": {"text": "1"}}, "messages of plain text"),
        ({"role": "assistant", "content": "1", "tool_calls": [{"id": "1"}]}, "without parts and tool calls"),
    ],
)
@BOTH
def test_messages_that_it_does_not_render_are_refused(tokenizer, message, told):
    with pytest.raises(DataError, match="chat template does not take the messages") as error:
        tokenizer.apply_chat([message])
    assert told in str(error.value)
