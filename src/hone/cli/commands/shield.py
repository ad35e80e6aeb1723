"""`hone shield`: prove a shield and write its certificate, or prove a certificate again."""

from dataclasses import replace
from pathlib import Path

from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.config.resolve import read_document, resolve
from hone.core.clock import SystemClock
from hone.core.decisions import Evidence
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.decide.registry import open_registry
from hone.decide.shield.certificate import (
    ProvedSpec,
    ShieldCertificate,
    UnprovedShieldError,
    certify,
    checked_model,
    read_certificate,
)
from hone.decide.shield.model import ControlModel, GameShieldConfig, InvariantShieldConfig, RuleShieldConfig
from hone.decide.shield.page import ShieldPageData, rehearse_shield
from hone.decide.shield.service import rule_shield
from hone.run.store.durable import replace_file

KINDS: dict[str, type[RuleShieldConfig] | type[ProvedSpec]] = {
    "rules": RuleShieldConfig, "game": GameShieldConfig, "invariant": InvariantShieldConfig
}  # fmt: skip
REHEARSED_STEPS = 3_000


def run(call: CommandCall) -> int:
    """Prove what the file claims; 3 if a claim does not hold."""
    if bool(call.text("registry")) != bool(call.text("version")):
        raise ConfigError("--registry and --version go together: the registry, and the version under the shield")
    path, screen = Path(call.text("file")), standard_screen()
    if path.suffix == ".json":
        certificate = read_certificate(path)
        certificate.check()
    else:
        # tables of a shield's file. Raises ConfigError with every fault and its line
        document = read_document(path)
        kind = document.values.get("kind")
        if kind not in KINDS:
            raise ConfigError(f"{path}: kind = {kind!r}{did_you_mean(str(kind), list(KINDS))}")
        spec = resolve(KINDS[str(kind)], document).config
        if isinstance(spec, RuleShieldConfig):
            rule_shield(spec, spec.sensors)
            screen.line(f"{path}: {len(spec.rules)} rules, and {spec.fallback} is never forbidden; rules prove no more")
            return 0
        certificate = _certified(spec, call, path, screen)
    return _judged(certificate, call, path, screen)


def _certified(spec: ProvedSpec, call: CommandCall, path: Path, screen: TerminalScreen) -> ShieldCertificate:
    try:
        certificate = certify(spec)
    except UnprovedShieldError as error:
        _write_page(call, ShieldPageData(
            name=path.stem, model=checked_model(spec), certificate=None, shield=None, reasons=error.messages,
            counterexample=error.counterexample,
        ), screen)  # fmt: skip
        raise
    target = Path(call.text("out") or path.with_suffix(".json"))
    replace_file(target, certificate.text().encode())
    screen.line(f"certificate: {target}")
    return certificate


def _judged(certificate: ShieldCertificate, call: CommandCall, path: Path, screen: TerminalScreen) -> int:
    model = checked_model(certificate.spec)
    shield = certificate.open(model.variables)
    screen.line(f"proved: {certificate.proved[0]}")
    for claim in certificate.proved[1:]:
        screen.line(f"  {claim}")
    screen.line("assumed:")
    for claim in certificate.assumed:
        screen.line(f"  {claim}")
    screen.line(f"sha256 {certificate.sha256}")
    driven = rehearse_shield(model, shield, steps=REHEARSED_STEPS, seed=0) if call.text("html") else None
    shown = ShieldPageData(name=path.stem, model=model, certificate=certificate, shield=shield, rehearsal=driven)
    if not call.texts("with"):
        _write_page(call, shown, screen)
        _add_evidence(call, certificate, screen)
        return 0
    # try the claims with other constants, which the certificate was not made for
    changes = _constants(call.texts("with"), shown.model)
    config = certificate.spec.model
    changed = config.model_copy(update={"constants": {**config.constants, **changes}})
    words = ", ".join(f"{name} = {value:g}" for name, value in changes.items())
    try:
        replace(certificate, spec=certificate.spec.model_copy(update={"model": changed})).prove_claims()
    except UnprovedShieldError as error:
        reasons = tuple(f"with {words}: {message}" for message in error.messages)
        _write_page(call, replace(shown, reasons=reasons, counterexample=error.counterexample), screen)
        raise DataError(*reasons) from None
    screen.line(f"with {words}: every claim holds, too")
    _write_page(call, shown, screen)
    return 0


def _add_evidence(call: CommandCall, certificate: ShieldCertificate, screen: TerminalScreen) -> None:
    if not call.text("registry"):
        return
    evidence = Evidence(
        kind="certificate", verdict="ok", words=f"{certificate.proved[0]}; sha256 {certificate.sha256}",
        made_by=f"hone shield {call.text('file')}", at_s=SystemClock().now_s(),
    )  # fmt: skip
    open_registry(Path(call.text("registry"))).add_evidence(call.text("version"), evidence)
    screen.line(f"evidence of version {call.text('version')} added to {call.text('registry')}")


def _constants(texts: list[str], model: ControlModel) -> dict[str, float]:
    changes: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in model.constants:
            raise ConfigError(f"--with {text}: no such constant{did_you_mean(name, list(model.constants))}")
        try:
            changes[name] = float(number)
        except ValueError:
            raise ConfigError(f"--with {text}: {number!r} is no number; write --with {name}=4") from None
    return changes


def _write_page(call: CommandCall, shown: ShieldPageData, screen: TerminalScreen) -> None:
    if target := call.text("html"):
        shown.write(Path(target))
        screen.line(f"page: {target}")
