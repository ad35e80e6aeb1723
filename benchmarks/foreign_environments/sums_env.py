"""Sums of two digits as an environment of verifiers: a taskset with its rubric, and a harness of one question.

Run by an interpreter that has `verifiers`; it knows nothing of hone.
"""

import httpx
import verifiers.v1 as vf

__all__ = ["OneQuestionHarness", "SumsTaskset"]


class SumsData(vf.TaskData):
    answer: int


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def near(self, trace: vf.Trace) -> float:
        """1 for the sum, less for a digit further away, 0 for anything else."""
        said = (trace.branches[-1].messages[-1].content or "").strip()
        return 1.0 - abs(int(said) - self.data.answer) / 9 if said.isdigit() and len(said) == 1 else 0.0

    @vf.metric
    async def right(self, trace: vf.Trace) -> float:
        return float((trace.branches[-1].messages[-1].content or "").strip() == str(self.data.answer))


class SumsTaskset(vf.Taskset[SumsTask, vf.TasksetConfig]):
    def load(self):
        for a in range(5):
            for b in range(5):
                yield SumsTask(SumsData(name=f"{a}+{b}", prompt=f"{a}+{b}=", answer=a + b), self.config.task)


class OneQuestionConfig(vf.HarnessConfig):
    pass


class OneQuestionHarness(vf.Harness[OneQuestionConfig]):
    """Asks the model the task's prompt, in this process; the taskset's default, as it stands in its package."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        body = {"model": ctx.model, "messages": [{"role": "user", "content": prompt}]}
        async with httpx.AsyncClient(timeout=300) as client:
            key = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", headers=key, json=body)
        return vf.ProgramResult(exit_code=int(reply.status_code != 200), stdout=reply.text, stderr=reply.text)
