"""An agent that knows nothing of hone: it asks a model by OpenAI's package, judges what it says, and reports a reward.

python examples/agents/digits_agent.py http://127.0.0.1:8712
"""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import openai

SERVER, AT_ONCE = sys.argv[1], 32


def play(number: int) -> None:
    """One dialogue of two turns: say the digit, and the next one."""
    session, digit = f"{SERVER}/sessions/{number}", number // 8 % 4
    model = openai.OpenAI(base_url=f"{session}/v1", api_key="none", max_retries=0)
    messages, reward = [{"role": "user", "content": f"say {digit}"}], 0.0
    for wanted in (digit, digit + 1):
        answer = model.chat.completions.create(model="policy", messages=messages).choices[0].message.content
        reward += answer.count(str(wanted)) / max(len(answer), 2)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and on"}]
    urllib.request.urlopen(urllib.request.Request(f"{session}/reward", json.dumps({"reward": reward}).encode()))


def play_on(first: int) -> None:
    """Every `AT_ONCE`-th dialogue, until the address is gone: then the policy is trained."""
    for number in count(first, AT_ONCE):
        play(number)


with ThreadPoolExecutor(AT_ONCE) as threads:
    for ended in [threads.submit(play_on, first).exception() for first in range(AT_ONCE)][:1]:
        print(f"no more dialogues: {ended}")
