"""Environments that ask a sum by HTTP and score the answer, in the shapes of `verifiers.v1` 0.4."""

import asyncio
import json
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass
class EvalClientConfig:
    base_url: str
    api_key_var: str


@dataclass
class SamplingConfig:
    pass


@dataclass
class ModelContext:
    model: str
    client: EvalClientConfig
    sampling: SamplingConfig


@dataclass
class SumsEnvironment:
    config: dict
    taskset: list = field(default_factory=list)

    @asynccontextmanager
    async def serving(self):
        yield

    def slots(self, task):
        return [SimpleNamespace(task=task)]

    async def run_slot(self, slot, context):
        data = slot.task.data
        if data.prompt_text == "raises":
            raise RuntimeError("a harness broke")
        if data.prompt_text == "fails":
            return SimpleNamespace(ok=False, traces=[], errors=[SimpleNamespace(type="EnvError", message="no luck")])
        said = await asyncio.to_thread(self._ask, context, data.prompt_text, "solver")
        judged = await asyncio.to_thread(self._ask, context, "12", "judge")
        rewards = {"right": SimpleNamespace(value=float(len(said)))}
        solver = SimpleNamespace(
            id="solver", agent=None, rewards=rewards, metrics={"long": 1.0, "unknown": None}, reward=float(len(said))
        )
        judge = SimpleNamespace(
            id="judge", agent=SimpleNamespace(trainable=False), rewards={}, metrics={}, reward=len(judged)
        )
        return SimpleNamespace(ok=True, traces=[solver, judge], errors=[])

    @staticmethod
    def _ask(context, text, trace):
        body = {"model": context.model, "messages": [{"role": "user", "content": text}]}
        address = f"{context.client.base_url}/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"X-Session-ID": trace})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())["choices"][0]["message"]["content"]


def resolve_env_config(table):
    return table


def load_environment(config):
    if config["taskset"]["id"] == "broken":
        raise ValueError("its data is gone")
    if config["taskset"]["id"] == "dies":
        raise SystemExit(9)
    print("environments may print")
    env = SumsEnvironment(config)
    for place, text in enumerate(config["taskset"].get("prompts", ["1+1=", "1+2="])):
        data = SimpleNamespace(name=None, id=None, idx=place, prompt_text=text, system_prompt="2" if place else None)
        env.taskset.append(SimpleNamespace(data=data))
    return env
