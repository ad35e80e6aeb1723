"""What a running service does for its operators: whether it is ready, and a new service file without a restart."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hone.config.resolve import ResolvedConfig
from hone.core.clock import Clock
from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError, HoneError
from hone.decide.gateway.access import TenantLimits, TokenBucket
from hone.decide.gateway.http_app import GatewayRoutes
from hone.decide.gateway.opening import OpenedService, open_access, read_service_file, saved_version
from hone.decide.gateway.service_config import FolderServiceConfig, RateLimitConfig, ServiceFileConfig
from hone.decide.log.protocol import DecisionLog

# ------------------------------------------------------------------------------------------------------------ readiness

PROBE_S: Final = 1.0
"""Seconds for which an answer of the log holds."""
PROBE_TIMEOUT_S: Final = 2.0
"""Seconds after which a log that does not answer counts as down."""
WRITE_FAULT_S: Final = 5.0
"""Seconds for which a failed append counts: after that the next request tries."""


@dataclass(slots=True, eq=False, kw_only=True)
class LogProbe:
    """Asks whether the decision log takes records: the latest append, and a question to the log itself.

    The log is asked on a thread, by one question at a time and at most once a second, whoever asks how often.
    """

    log: DecisionLog
    write_failed_s: Callable[[], float]
    """Monotonic time of the latest append that failed; minus infinity if none did since one that did not."""
    clock: Clock
    timeout_s: float = PROBE_TIMEOUT_S
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "log-probe"))
    _asked: "asyncio.Future[object] | None" = None
    _asked_s: float = float("-inf")

    async def fault(self) -> str:
        """Why decisions cannot be logged now, in words without names; empty: they can."""
        now_s = self.clock.monotonic_s()
        if now_s - self.write_failed_s() < WRITE_FAULT_S:
            return "the decision log does not take records"
        asked = self._asked
        if asked is None or (asked.done() and now_s - self._asked_s >= PROBE_S):
            self._asked_s = now_s
            asked = self._asked = asyncio.get_running_loop().run_in_executor(self._thread, self.log.watermarks)
        try:
            await asyncio.wait_for(asyncio.shield(asked), self.timeout_s)
        except TimeoutError:
            return f"the decision log does not answer within {self.timeout_s:g} s"
        except (HoneError, OSError):
            return "the decision log cannot be reached"
        return ""


# --------------------------------------------------------------------------------------------------------------- reload

_RELOADED: Final = ("service.clients", "service.limit", "service.max_body_bytes", "service.deadline_s")
_RELOADED_POLICY: Final = ("policy.path", "policy.floor")
"""Keys of a policy in a folder that a reload may change too; the folder is opened again in any case."""


def tenant_limits(limit: RateLimitConfig, tenants: list[str]) -> TenantLimits:
    """A rate limit of each tenant."""
    return TenantLimits({name: TokenBucket(limit.per_s, limit.burst) for name in tenants} if limit.per_s else {})


def reload_service(path: Path, opened: OpenedService, routes: GatewayRoutes) -> str:
    """Take up a changed service file: clients and their tokens, limits, the deadline, and the policy of a folder.

    -> what was done, in a sentence.

    Raises ConfigError that names each other key that has changed, and as `read_service_file`: then nothing is changed.
    """
    fresh = read_service_file(path)
    old, new = opened.config, fresh.config
    folder_policy = isinstance(old.policy, FolderServiceConfig) and isinstance(new.policy, FolderServiceConfig)
    allowed = _RELOADED + (_RELOADED_POLICY if folder_policy else ())
    changed = _changed_keys(opened.resolved, fresh)
    if fixed := {key: origin for key, origin in changed.items() if not key.startswith(allowed)}:
        names = ", ".join(f"{key} ({origin})" for key, origin in fixed.items())
        raise ConfigError(f"{path.name} was not taken up: {names} cannot change while the service runs; start it again")
    access = open_access(fresh, path.parent)
    versions = _open_folder_again(path, opened, new) if folder_policy else ""
    limits = routes.limits
    if any(key.startswith("service.limit") for key in changed):
        limits = tenant_limits(new.service.limit, new.service.tenants)
    routes.access, routes.limits, routes.max_body_bytes = access, limits, new.service.max_body_bytes
    parts = opened.service.parts
    opened.service.parts = replace(parts, rules=replace(parts.rules, deadline_s=new.service.deadline_s))
    opened.resolved = fresh
    return f"reloaded {path.name}: {', '.join(changed) or 'no key has changed'}; tokens were read again{versions}"


def _changed_keys(old: ResolvedConfig[ServiceFileConfig], new: ResolvedConfig[ServiceFileConfig]) -> dict[str, str]:
    """Keys whose values differ, with the lines of the new file."""
    before: Mapping[str, ConfigSetting] = old.settings()
    after: Mapping[str, ConfigSetting] = new.settings()
    return {
        key: after[key].origin if key in after else "no longer there"
        for key in dict.fromkeys((*after, *before))
        if key not in before or key not in after or before[key].value != after[key].value
    }


def _open_folder_again(path: Path, opened: OpenedService, config: ServiceFileConfig) -> str:
    """Serve what the policy's folder holds now; the version before becomes the last good one. Raises DataError."""
    policies, policy = opened.policies, config.policy
    assert isinstance(policy, FolderServiceConfig)
    version = saved_version(policy, path.parent, policies.shelf, policies.wrap, opened.clock)
    servings = [one for one in policies.tenants.values() if one.live.name != version.name]
    if not servings:
        if version.guard is not None:
            version.guard.close()
        return f"; version {version.name} stays"
    for serving in servings:
        serving.serve(version, policies.default, opened.clock)
    return f"; version {version.name} is served"
