"""The client of a judge's model, wired: backend, cache and budget."""

from pathlib import Path

from hone.core.clock import SystemClock
from hone.rewards.judges.cache import ReplyCache
from hone.rewards.judges.config import JudgeBudget, JudgeModel, JudgeSource
from hone.rewards.judges.spending import JudgeSpending
from hone.text.evaluate.judges.client import JudgeBackend, JudgeClient, JudgeLedger
from hone.text.evaluate.judges.model_backend import JudgeModelBackend
from hone.text.evaluate.judges.server_backend import JudgeServerBackend


def open_client(name: str, by: JudgeSource, budget: JudgeBudget, *, cache: str | None, device: str) -> JudgeClient:
    """The client of a model; it asks and loads nothing yet. Raises ConfigError for an address that cannot be one, or a
    key that the environment lacks."""
    ledger = JudgeLedger(JudgeSpending(name, budget), None if cache is None else ReplyCache(Path(cache)), SystemClock())
    backend: JudgeBackend = (
        JudgeModelBackend(name, by, ledger, device=device)
        if isinstance(by, JudgeModel)
        else JudgeServerBackend(name, by, ledger)
    )
    return JudgeClient(name, backend, ledger)
