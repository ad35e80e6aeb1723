"""The plan of a service, derived from its file: what is served, logged and learnt, the memory, and what is missing."""

from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from hone.core.clock import Clock
from hone.core.errors import ConfigError, ErrorCollector, HoneError
from hone.decide.gateway.opening import (
    MOST_OPEN,
    log_address,
    make_catalogue,
    open_access,
    open_versions,
    read_service_file,
    service_folder,
)
from hone.decide.gateway.service_config import (
    FolderServiceConfig,
    LearningServiceConfig,
    ServiceFileConfig,
    TrafficServiceConfig,
)
from hone.decide.log.protocol import log_name
from hone.decide.rollout.plan import GuardrailHistory, RolloutGuardrail, RolloutPlan, stage_name
from hone.decide.shield.certificate import read_certificate

ANSWER_BYTES: Final = 900
"""Memory of a remembered answer."""
OPEN_BYTES: Final = 1100
"""Memory of a decision that waits for its reward, beside its features and scores."""


def plan_lines(path: Path, *, clock: Clock) -> list[str]:
    """Lines of the plan. Raises ConfigError with every fault of the file, tokens that are not set included."""
    resolved = read_service_file(path)
    config, faults = resolved.config, ErrorCollector(ConfigError)
    tables = [config.log, *([] if config.features is None else [config.features])]
    addresses = [partial(log_address, path.parent, table) for table in tables]
    for check in (*(partial(one, resolved, path.parent) for one in (open_access, open_versions)), *addresses):
        try:
            check()
        except HoneError as error:
            faults.extend(error.messages)
    if isinstance(config.policy, FolderServiceConfig) and not (path.parent / config.policy.path).is_dir():
        origin = resolved.origins.get("policy.path", "[policy]")
        faults.add(f"{origin}: policy.path {config.policy.path!r} is no folder beside {path.name}")
    shield: list[str] = []
    try:
        shield = list(_shield_lines(path, config, clock))
    except HoneError as error:
        if not faults.messages:
            raise
        faults.extend(error.messages)
    faults.raise_if_any()
    folder = service_folder(path, config)
    parts = (
        _service_lines(path, folder, config),
        shield,
        _rollout_lines(config),
        _memory_lines(config),
        _missing_lines(config),
    )
    return [line for lines in parts for line in lines]


def _service_lines(path: Path, folder: Path, config: ServiceFileConfig) -> Iterator[str]:
    service, log, join = config.service, config.log, config.join
    catalogue = make_catalogue(service)
    actions = "named by each request" if catalogue.declared is None else f"{len(service.actions)} declared"
    yield f"service    {folder.name} ({path.name}), files in {folder}"
    yield f"context    {len(service.features)} features: {', '.join(service.features) or 'none'}"
    yield f"actions    {actions}{f', {len(service.action_features)} features each' if service.action_features else ''}"
    yield f"policy     {_policy_words(config)}"
    yield from _feature_lines(folder, config)
    kept = "before the answer" if log.durable == "before" else f"behind the answer, at most {log.buffer} waiting"
    name = log_name(log.address if "://" in log.address else folder / log.address)
    yield f"log        {name}, {kept}{', flushed to disk' if log.full_sync else ''}"
    learns = "at the first one" if join.rule == "first" else f"when the window closes, {_span(join.window_s)} later"
    yield f"rewards    {join.rule} of kind {join.kind!r} within {_span(join.window_s)}, learnt {learns}"
    low, high = join.bounds
    bounds = "any value" if low == -high == -inf else f"{low:g} to {high:g}; {join.beyond} others"
    levels = policy.reward_quantiles if isinstance(policy := config.policy, LearningServiceConfig) else None
    learnt = f", learnt within their quantiles {levels[0]:g} and {levels[1]:g}" if levels else ""
    yield f"outcomes   {bounds}{learnt}"
    callers = ", ".join(f"{client.name} ({'+'.join(client.scopes)})" for client in service.clients)
    yield f"callers    {callers or 'everybody on this machine, without a token'}"
    rate = f"{service.limit.per_s:g} a second, {service.limit.burst:g} at once" if service.limit.per_s else "no limit"
    yield f"tenants    {', '.join(service.tenants)}; requests of each: {rate}"
    safe = service.safe_action or "each action with equal probability"
    yield f"deadline   {1000 * service.deadline_s:g} ms, then the last good version, then {safe}"


def _feature_lines(folder: Path, config: ServiceFileConfig) -> Iterator[str]:
    if (table := config.features) is None:
        return
    address = table.address if "://" in table.address or table.address == ":memory:" else folder / table.address
    yield f"features   from {log_name(address)}, within {1000 * table.deadline_s:g} ms"
    safe = config.service.safe_action or "each action with equal probability"
    rules = {"safe": f"then {safe}", "refuse": "then the request is refused", "default": "then the defaults"}
    for group in table.groups:
        age = f" or older than {_span(group.stale_s)}" if group.stale_s else ""
        names = ", ".join(group.features)
        yield f"features   {group.name} of {group.entity or 'the unit'}: {names}; missing{age}: {rules[group.missing]}"


def _policy_words(config: ServiceFileConfig) -> str:
    policy, count = config.policy, len(config.service.actions)
    if isinstance(policy, FolderServiceConfig):
        return f"{policy.path}, floor {policy.floor:g}"
    if isinstance(policy, LearningServiceConfig):
        least = f", every action has probability {policy.floor / count:.3g} or more" if count else ""
        memory = ""
        if policy.windows is not None:
            lengths = ", ".join(f"the latest {one}" if one else "all" for one in policy.windows.lengths)
            memory = f" over windows of {lengths} rewards, mixed by their errors"
        words = f"{policy.kind}{memory}, floor {policy.floor:g}{least}"
        return f"{words}; a version every {policy.publish_every} rewards"
    if isinstance(policy, TrafficServiceConfig):
        names, each = ", ".join(policy.versions), policy.share_floor / len(policy.versions)
        words = f"traffic between {names} by their rewards, each has {each:.3g} of it or more, floor {policy.floor:g}"
        return f"{words}; a mixture every {policy.publish_every} rewards"
    return "uniform: every action with equal probability; nothing is learnt"


def _shield_lines(path: Path, config: ServiceFileConfig, clock: Clock) -> Iterator[str]:
    """What the shield holds. Raises as `ShieldConfig.open`: a claim that fails comes with its counterexample."""
    if config.shield is None:
        return
    names = config.service.features
    config.shield.open(path.parent, names, clock, actions=make_catalogue(config.service).declared)
    rules, deadline_ms = config.shield.rules, 1000 * config.shield.deadline_s
    if rules is not None:
        count = "one rule" if len(rules.rules) == 1 else f"{len(rules.rules)} rules"
        yield f"shield     {count}, not proved; after {deadline_ms:g} ms, or blind: {rules.fallback}"
        yield from (f"rule       {', '.join(one.actions)}: only if {one.only_if}" for one in rules.rules)
        free = sorted(set(rules.actions) - {action for one in rules.rules for action in one.actions})
        yield f"rule       {', '.join(free)}: always"
        return
    certificate = read_certificate(path.parent / config.shield.certificate)
    approved = "approved by its sha256" if config.shield.sha256 else "any whose proof holds is taken: give its sha256"
    yield f"shield     {config.shield.certificate}, {certificate.sha256[:8]}, a {certificate.spec.kind}; {approved}"
    yield f"shield     after {deadline_ms:g} ms, or blind: {certificate.spec.fallback}"
    yield from (f"proved     {words}" for words in certificate.proved)
    yield from (f"assumed    {words}" for words in certificate.assumed)


def _rollout_lines(config: ServiceFileConfig) -> Iterator[str]:
    """Stages of a rollout, and the smallest loss that each can find where the file tells mean and spread."""
    rollout = config.rollout
    guardrails = tuple(
        RolloutGuardrail(kind=one.kind, low=one.low, high=one.high, higher_is_better=one.better == "higher",
                         tolerance=one.tolerance)
        for one in rollout.guardrails
    )  # fmt: skip
    plan = RolloutPlan(
        name="plan", service="plan", version="", control="", stages=tuple(rollout.stages), requests=rollout.requests,
        shadow_requests=rollout.shadow_requests, alpha=rollout.alpha, guardrails=guardrails,
    )  # fmt: skip
    names = ", ".join(stage_name(share) for share in plan.stages)
    yield f"rollout    {names}, {rollout.requests} requests each; alpha {rollout.alpha:g} over all stages"
    if not rollout.watch:
        yield "missing    [rollout] watch: a rollout moves, or goes back, only while a `hone ship` follows it"
    for one in rollout.guardrails:
        if one.mean is None or one.sd is None or one.mean == 0:
            yield f"missing    mean and sd of guardrail {one.kind!r}: `hone ship --dry-run` reads them from the log"
            continue
        history = GuardrailHistory(kind=one.kind, mean=one.mean, sd=one.sd, worth=one.worth)
        effects = (
            f"{stage.stage} {'nothing' if stage.detectable is None else format(stage.detectable, '.1%')}"
            for stage in plan.preview(history)
        )
        yield f"detects    loss of {one.kind!r} with probability 80% by the end of: {', '.join(effects)}"
        yield from (f"note       {words}" for words in plan.warnings(history))


def _memory_lines(config: ServiceFileConfig) -> Iterator[str]:
    service = config.service
    width = 8 * (len(service.features) + len(service.actions))
    answers = service.remember * ANSWER_BYTES
    tenants = len(service.tenants)
    waiting = tenants * MOST_OPEN * (OPEN_BYTES + width) if config.policy.learns else 0
    total = (answers + waiting) / 2**20
    yield (
        f"memory     at most about {total:.0f} MiB beside the program: {service.remember} answers"
        + (f", {tenants * MOST_OPEN} decisions that wait for their reward" if waiting else "")
    )


def _missing_lines(config: ServiceFileConfig) -> Iterator[str]:
    """What the file leaves open, and what that means."""
    service, policy, join = config.service, config.policy, config.join
    if not service.clients:
        yield "missing    [[service.clients]]: without tokens the service listens on this machine only"
    if not service.limit.per_s:
        yield "missing    [service.limit] per_s: a tenant that floods the service slows down the others"
    quantiles = isinstance(policy, LearningServiceConfig) and policy.reward_quantiles
    if policy.learns and not quantiles and None in (join.low, join.high):
        instead = ", or [policy] reward_quantiles" if isinstance(policy, LearningServiceConfig) else ""
        yield f"missing    [join] low and high{instead}: one wrong reward can turn the policy"
    if config.monitor is None:
        yield "missing    [monitor]: nobody watches for drift"
    if config.shield is None:
        yield "missing    [shield]: every declared action may be taken in every context"
    if isinstance(policy, FolderServiceConfig | TrafficServiceConfig) and not policy.floor:
        yield "missing    [policy] floor: actions of probability 0 cannot be estimated from the log"
    if config.log.durable == "after":
        yield 'note       durable = "after": a kill loses what waits; the log\'s watermarks show how much'


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
