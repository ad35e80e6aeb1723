"""`hone ship`: a new version through its stages, the state of rollouts, and the way back.

Belongs here: options and the layout on the screen. `decide.gateway.shipping` and `decide.rollout` do the work.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from hone.cli.options import CommandCall
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, InterruptedRun
from hone.core.strict_json import Json
from hone.decide.gateway.shipping import ServiceRollouts, open_rollouts
from hone.decide.rollout.controller import EffectReport, format_e_value
from hone.decide.rollout.driver import RolloutDriver
from hone.decide.rollout.history import read_history
from hone.decide.rollout.plan import GuardrailHistory, RolloutPlan
from hone.decide.rollout.watcher import RolloutWatcher
from hone.run.store.durable import to_json

LOOKING = ("status", "back", "dry_run", "once")


def run(call: CommandCall) -> int:
    """Ship a policy, or go on with, show or take back a rollout; returns the exit code."""
    switches = [name for name in LOOKING if call.switch(name)]
    if len(switches) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in switches)
        raise ConfigError(f"{flags} exclude each other; give one of them")
    to = call.text("to")
    if to and (call.switch("status") or call.switch("back")):
        raise ConfigError(f"--status and --back name the service alone: hone ship {to} --status")
    file = Path(to or call.text("what"))
    if not to and file.is_dir():
        raise ConfigError(f"{file} is a policy: name the service with --to FILE.toml")
    if call.switch("dry_run") and not to:
        raise ConfigError(f"--dry-run plans a policy: hone ship POLICY --to {file} --dry-run")
    with open_rollouts(file, SystemClock(), create=bool(to)) as rollouts:
        screen = standard_screen()
        if to:
            return _ship(screen, rollouts, call)
        if call.switch("status"):
            return _status(screen, rollouts, call)
        if call.switch("back"):
            return _back(screen, rollouts, call)
        return _follow(screen, rollouts, rollouts.resume(rollouts.latest()), call)


def _ship(screen: TerminalScreen, rollouts: ServiceRollouts, call: CommandCall) -> int:
    policy, parent = Path(call.text("what")), call.text("parent")
    dry = call.switch("dry_run")
    version = rollouts.policy_version(policy, parent) if dry else rollouts.add(policy, parent).id
    plan = rollouts.plan(version, call.text("name"))
    histories = rollouts.histories()
    if dry:
        if call.switch("json"):
            print(to_json(_plan_json(plan, histories), indent=1).decode(), end="")
        else:
            show_plan(screen, plan, histories)
        return 0
    if not call.switch("json"):
        show_plan(screen, plan, histories)
    try:
        driver = rollouts.start(plan)
    except ConfigError as error:
        hint = f"version {version} is in {rollouts.registry.folder}"
        if plan.needs:
            hint += f"; `hone estimate LOG --registry {rollouts.registry.folder} --version {version}` adds `offline`"
        raise ConfigError(*error.messages, hint) from error
    return _follow(screen, rollouts, driver, call)


def _follow(screen: TerminalScreen, rollouts: ServiceRollouts, driver: RolloutDriver, call: CommandCall) -> int:
    """Look until the rollout ends, or once; then show it."""
    name = driver.plan.name
    watcher = rollouts.watcher(partial(_tell, screen, call))
    try:
        driver = _look(screen, rollouts, watcher, driver, call)
        while not driver.state.finished and not call.switch("once"):
            time.sleep(rollouts.config.rollout.look_every_s)
            driver = _look(screen, rollouts, watcher, driver, call)
    except KeyboardInterrupt:
        raise InterruptedRun(
            f"rollout {name} stays at {driver.state.stage}; `hone ship {rollouts.file}` goes on, --back takes it back"
        ) from None
    finally:
        watcher.stop()
    return _show(screen, rollouts, name, call)


def _tell(screen: TerminalScreen, call: CommandCall, code: str, words: str) -> None:
    """Say that another process watches, such as the service."""
    if code == "rollout_watch" and not words.endswith("this process") and not call.switch("json"):
        screen.line(words)


def _look(
    screen: TerminalScreen, rollouts: ServiceRollouts, watcher: RolloutWatcher, driver: RolloutDriver, call: CommandCall
) -> RolloutDriver:
    """Look once if no other process watches the rollouts, and print the transitions -> the rollout as it is then."""
    leads = watcher.lead()
    if not leads or driver.behind():
        driver = rollouts.resume(driver.plan.name)
    for transition in driver.step() if leads else ():
        if not call.switch("json"):
            screen.line(f"{transition.before} -> {transition.after}: {transition.words}")
    return driver


def _status(screen: TerminalScreen, rollouts: ServiceRollouts, call: CommandCall) -> int:
    return _show(screen, rollouts, call.text("name") or rollouts.latest(), call)


def _back(screen: TerminalScreen, rollouts: ServiceRollouts, call: CommandCall) -> int:
    name = call.text("name") or rollouts.latest()
    driver, words = rollouts.resume(name), call.text("reason") or "a person took it back"
    if driver.state.finished:
        now_s = rollouts.clock.now_s()
        done = rollouts.registry.rollback(rollouts.service, at_s=now_s, made_by="hone ship --back", reason=words)
        line = f"version {done.version} is live again in {rollouts.service}, in place of {done.replaced}"
        if call.switch("json"):
            print(to_json({"live": done.version, "replaced": done.replaced, "words": line}).decode(), end="")
        else:
            screen.line(line)
        return 0
    driver.back(words)
    return _show(screen, rollouts, name, call)


def _show(screen: TerminalScreen, rollouts: ServiceRollouts, name: str, call: CommandCall) -> int:
    history = read_history(rollouts.registry, rollouts.service, name)
    if call.switch("json"):
        table: dict[str, Json] = {"service": rollouts.service, "live": rollouts.registry.live(rollouts.service)}
        print(to_json(table | {"rollout": cast("Json", history.json())}, indent=1).decode(), end="")
        return 0
    # print the judgement, then stages and effects
    plan = history.plan
    screen.title(history.words)
    rows = [
        [
            rung.stage,
            "not reached" if rung.begun_s is None else f"{rung.seen:,} of {rung.needed:,}" if rung.needed else "live",
            "" if rung.begun_s is None or rung.stage == "shadow" else format_e_value(rung.log_e),
            rung.left.words if rung.left else "",
        ]
        for rung in history.rungs
    ]
    screen.table(("stage", "units", f"e (limit {1 / plan.guardrail_alpha:.3g})", "left because"), rows)
    screen.line()
    effects = [_effect_row(one) for one in history.looks[-1].effects if one.count]
    if effects:
        screen.table(("outcome", "new", "control", "effect (95%, at every look)", "units", "e"), effects)
    control, new = history.state.evidence.ratio.counts
    both = history.state.evidence.both_arms
    screen.line(f"units: {new:,} canary, {control:,} control; in both arms: {both:,}")
    page = Path(call.text("html") or rollouts.folder / f"rollout_{name}.html")
    history.write_page(page, rollouts.registry.lineage(history.plan.version), file=rollouts.file)
    screen.line(f"stages, evidence and lineage in {page}")
    return 0


def show_plan(screen: TerminalScreen, plan: RolloutPlan, histories: Sequence[GuardrailHistory]) -> None:
    """Print the plan: first what it cannot find, then its stages."""
    screen.title(f"rollout {plan.name}: version {plan.version} beside {plan.control or 'the service'}")
    for history in histories:
        for sentence in plan.warnings(history):
            screen.line(f"warning: {sentence}")
    unknown = [one.kind for one in plan.guardrails if one.kind not in {each.kind for each in histories}]
    for kind in unknown:
        screen.line(
            f"{kind}: the log has none yet; give mean and sd under [[rollout.guardrails]] to see what can be found"
        )
    previews = {history.kind: plan.preview(history) for history in histories}
    heads = ("stage", "requests until its end", "exposed", *(f"loss of {kind} found (80%)" for kind in previews))
    rows: list[list[str]] = []
    for number, stage in enumerate(plan.ladder[1:-1]):
        place = number - (1 if plan.shadow_requests else 0)
        if stage == "shadow":
            rows.append([stage, f"{plan.shadow_requests:,}", "0", *("-" for _ in previews)])
            continue
        exposed = sum(plan.units_needed(one) for one in plan.ladder[1 : number + 2] if one != "shadow")
        requests = plan.shadow_requests + (place + 1) * plan.requests
        shares = [each[place].detectable for each in previews.values()]
        losses = ["none" if share is None else f"{share:.1%}" for share in shares]
        rows.append([stage, f"{requests:,}", f"{exposed:,}", *losses])
    screen.table(heads, rows)
    needs = f"; needs evidence: {', '.join(plan.needs)}" if plan.needs else ""
    screen.line(f"a version as good as the live one is rolled back with probability {plan.alpha:.1%} at most{needs}")
    screen.line()


def _plan_json(plan: RolloutPlan, histories: Sequence[GuardrailHistory]) -> dict[str, Json]:
    stages: list[Json] = [
        {"kind": history.kind, "stage": row.stage, "requests": row.requests, "exposed": row.exposed,
         "detectable": row.detectable}
        for history in histories
        for row in plan.preview(history)
    ]  # fmt: skip
    warnings: list[Json] = [sentence for history in histories for sentence in plan.warnings(history)]
    return {
        "rollout": plan.name, "service": plan.service, "version": plan.version, "control": plan.control,
        "alpha": plan.alpha, "ladder": list(plan.ladder), "needs": list(plan.needs), "stages": stages,
        "warnings": warnings,
    }  # fmt: skip


def _effect_row(one: EffectReport) -> list[str]:
    interval = f"{compact_number(one.effect)} ({compact_number(one.low)} to {compact_number(one.high)})"
    means = (compact_number(one.new_mean), compact_number(one.control_mean))
    return [one.kind, *means, interval, f"{one.count:,}", format_e_value(one.log_e)]
