"""The default chat template: the one of tokenizers that hone builds for a new model and data with conversations.

A message is its role's token, its text, and `<eos>`: `<|user|>2+2?<eos><|assistant|>4<eos>`. It appends only, keeps all
whitespace, and needs no character beside those of the messages.
"""

from typing import Final

ROLE_TOKENS: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
"""Special tokens of the roles, in the order of their ids, which follow all others."""
DEFAULT_CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('the default chat template has no role \\'' ~ message['role'] ~ '\\'; known: system, user, "
    "assistant, tool') -}}"
    "{%- endif -%}"
    "{%- if message['content'] is not string or message['tool_calls'] -%}"
    "{{- raise_exception('the default chat template takes messages of plain text, without parts and tool calls') -}}"
    "{%- endif -%}"
    "{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<eos>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
