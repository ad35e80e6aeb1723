"""Certificate of a shield: what is assumed, what was proved, and all that is needed to prove it again.

Belongs here: making a certificate, its file, and the proof at load. A certificate is a JSON document with its own
sha256; nobody has to trust the one who made it, as `ShieldCertificate.check` proves its claims anew.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import strict_json
from hone.decide.shield.game import (
    NEVER,
    Bools,
    GridGame,
    StateGrid,
    WinningRegion,
    describe_values,
    discrete_disturbances,
    grid_game,
)
from hone.decide.shield.guard import ActionMatcher, SensorReader, sensor_reader
from hone.decide.shield.invariant import ClaimResult, InvariantModel, invariant_model
from hone.decide.shield.model import (
    ControlModel,
    GameShieldConfig,
    InvariantShieldConfig,
    RuleShieldConfig,
    control_model,
    shield_spec,
)

Floats = NDArray[np.float64]

# --------------------------------------------------------------------------------------------------------------- lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridShield:
    """Actions allowed by the winning region of a safety game, by a lookup in a table."""

    certificate: str
    grid: StateGrid
    reader: SensorReader
    matcher: ActionMatcher
    table: Bools
    """`[S + 1, A]` allowed actions of each cell; none in the last row, which stands for all that is outside."""

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Actions `[K]` after which a safe action exists again, whatever others do; none outside the region, and where
        a sensor is missing or not finite."""
        values = self.reader.read(context)
        number = -1 if values is None else self.grid.number(values)
        return self.matcher.match(self.table[number], actions)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action that is proved to keep every safe state safe."""
        del context
        return self.matcher.place_of_fallback(actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InvariantShield:
    """Actions allowed by an inductive invariant: those after which it holds again under the worst disturbance."""

    certificate: str
    proved: InvariantModel
    worst: Mapping[str, float]
    """The worst disturbance, as proved."""
    columns: Mapping[str, Floats]
    """`[A]` values of the actions' columns."""
    reader: SensorReader
    matcher: ActionMatcher

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Actions `[K]` that lead back into the invariant; none outside it, and where a sensor is missing."""
        values = self.reader.read(context)
        if values is None:
            return np.zeros(len(actions), np.bool_)
        model = self.proved.model
        state = dict(zip(model.variables, values, strict=True))
        if not self.holds(state):
            return np.zeros(len(actions), np.bool_)
        after = model.after_each(state, self.columns, self.worst)
        flags = np.ones(len(model.actions), np.bool_)
        known = {**model.constants, **after}
        for condition in self.proved.invariant:
            flags &= np.asarray(condition.over(known), np.bool_)
        return self.matcher.match(flags, actions)

    def holds(self, state: Mapping[str, float]) -> bool:
        """True in a state of the invariant."""
        known = {**self.proved.model.constants, **state}
        return all(bool(condition.over(known)) for condition in self.proved.invariant)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action that is proved to keep the invariant."""
        del context
        return self.matcher.place_of_fallback(actions)


# ------------------------------------------------------------------------------------------------------- counterexample


MAX_STEPS = 200
MAX_FAULTS = 5
TRIED = 12
"""Lost states from which a play is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A trajectory of T steps, in which others keep to their bounds."""

    variables: tuple[str, ...]
    states: Floats
    """`[T + 1, variables]`."""
    actions: tuple[str, ...]
    """`T` actions of the system."""
    disturbances: tuple[Mapping[str, float], ...]
    """`T` disturbances."""
    unsafe: bool
    """True if it ends in an unsafe state; otherwise it only leaves the invariant."""

    def summary(self) -> str:
        """The trajectory in a sentence."""
        first, last = (describe_values(self._named(row)) for row in (0, -1))
        ending = "unsafe" if self.unsafe else "outside the invariant"
        moves = ", ".join(dict.fromkeys(self.actions))
        return f"from {first}, {len(self.actions)} steps of {moves} end {ending}: {last}"

    def _named(self, row: int) -> dict[str, float]:
        return dict(zip(self.variables, map(float, self.states[row]), strict=True))


def _game_counterexample(
    model: ControlModel, made: GridGame, solved: WinningRegion, claimed: NDArray[np.bool_]
) -> Counterexample | None:
    """Trajectory of the model, not rounded, from a claimed state that is lost: the player lasts as long as possible.

    States are tried from the longest play on, until one ends unsafe without the rounding, too. None if every claimed
    state is safe after all.
    """
    lost = np.flatnonzero(claimed & ~solved.winning)
    if not len(lost):
        return None
    by_rank = lost[np.argsort(-solved.rank[lost], kind="stable")]
    tried = by_rank[np.linspace(0, len(by_rank) - 1, min(TRIED, len(by_rank))).astype(int)]
    plays = [_replay_play(model, made, solved, int(start)) for start in tried]
    return next((play for play in plays if play.unsafe), plays[0])


def _replay_play(model: ControlModel, made: GridGame, solved: WinningRegion, start: int) -> Counterexample:
    """Trajectory by the play's actions, in which others choose what is lost soonest from the state that is reached."""
    play = made.game.losing_play(solved.rank, start, limit=MAX_STEPS)
    ranks = np.append(np.where(solved.rank == NEVER, np.iinfo(np.int64).max, solved.rank), 0)
    state = made.grid.state(start)
    rows, actions, others = [list(state.values())], list[int](), list[Mapping[str, float]]()
    while len(actions) < MAX_STEPS and bool(model.is_safe(dict(state))):
        action = play.actions[min(len(actions), len(play.actions) - 1)]
        ends = [
            {name: float(value) for name, value in model.after(dict(state), action, disturbance).items()}
            for disturbance in made.disturbances
        ]
        place = int(np.argmin([ranks[made.grid.number(list(end.values()))] for end in ends]))
        if ends[place] == state:
            break
        state = ends[place]
        actions.append(action)
        others.append(made.disturbances[place])
        rows.append(list(state.values()))
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=tuple(model.actions[action] for action in actions),
        disturbances=tuple(others), unsafe=not bool(model.is_safe(dict(state))),
    )  # fmt: skip


def _invariant_counterexample(model: ControlModel, claim: ClaimResult) -> Counterexample | None:
    """Trajectory from the state that z3 found, under the same action and the extreme disturbance that is unsafe first;
    where none is, the single step that z3 found. None without a state."""
    if claim.state is None or claim.disturbance is None:
        return None
    plays = [_hold(model, claim.state, claim.action, corner) for corner in model.corners()]
    unsafe = sorted((play for play in plays if play.unsafe), key=lambda play: len(play.actions))
    if unsafe:
        return unsafe[0]
    after = model.after(dict(claim.state), claim.action, claim.disturbance, dt=claim.duration_s)
    rows = [list(claim.state.values()), [float(value) for value in after.values()]]
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=(model.actions[claim.action],),
        disturbances=(claim.disturbance,), unsafe=False,
    )  # fmt: skip


def _hold(
    model: ControlModel, state: Mapping[str, float], action: int, disturbance: Mapping[str, float]
) -> Counterexample:
    rows, now = [list(state.values())], dict(state)
    while len(rows) <= MAX_STEPS and bool(model.is_safe(dict(now))):
        after = {name: float(value) for name, value in model.after(dict(now), action, disturbance).items()}
        if after == now:
            break
        now = after
        rows.append(list(now.values()))
    count = len(rows) - 1
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=(model.actions[action],) * count,
        disturbances=(disturbance,) * count, unsafe=not bool(model.is_safe(dict(now))),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- certificate


CERTIFICATE_FORMAT: Final = 2
GRID_ASSUMPTIONS: Final = (
    "between two decisions nothing is worse than at their ends (an invariant proves that, a game does not)",
    "a value within 1e-9 of a cell's width of the next cell may count as it",
)
ProvedSpec = GameShieldConfig | InvariantShieldConfig


class UnprovedShieldError(DataError):
    """A claim of a shield that could not be proved, with the trajectory that contradicts it, if there is one."""

    def __init__(self, *messages: str, counterexample: Counterexample | None = None) -> None:
        super().__init__(*messages)
        self.counterexample = counterexample


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldCertificate:
    """Claims of a shield, and the data that prove them again."""

    spec: ProvedSpec
    """The model, with the bounds on what others do."""
    assumed: tuple[str, ...]
    """What the proof takes for granted, in words."""
    proved: tuple[str, ...]
    """What follows from it, in words."""
    region: str = ""
    """Winning region of a game: its flags as bits, compressed, in base 64."""
    worst: Mapping[str, float] | None = None
    """Worst disturbance of an invariant."""
    sha256: str = ""
    """Hash of everything above."""

    def check(self, *, expected: str = "") -> ControlModel:
        """Prove every claim again. Raises DataError for a wrong hash, UnprovedShieldError for a claim that does not
        hold, ResourceError without z3."""
        return _checked(self, expected)[0]

    def prove_claims(self) -> tuple[ControlModel, GridGame | None, Bools | None, tuple[str, ...]]:
        """Prove the claims, whatever the hash says -> the model, the game and the region of a grid, and the claims that
        were proved, in words.

        Raises UnprovedShieldError for a claim that does not hold, ResourceError without z3.
        """
        spec = self.spec
        model = checked_model(spec)
        if isinstance(spec, InvariantShieldConfig):
            proved, worst = _prove_conditions(spec, model)
            if worst != self.worst:
                raise UnprovedShieldError(f"the worst disturbance is {worst}, not {self.worst}")
            return model, None, None, proved
        made = grid_game(model)
        region = _unpacked(self.region, len(made.game.safe))
        return model, made, region, _prove_region(spec, model, made, region)

    def open(self, features: Sequence[str], *, expected: str = "") -> _GridShield | _InvariantShield:
        """Shield of a certificate for contexts with these features, after every claim was proved again.

        Raises as `check`, and ConfigError for a sensor that is none of the features.
        """
        model, made, region, _ = _checked(self, expected)
        spec = self.spec
        reader = sensor_reader(model.variables, features)
        matcher = ActionMatcher(model.actions, spec.fallback)
        if isinstance(spec, InvariantShieldConfig):
            names = {name for columns in model.columns for name in columns}
            columns = {name: np.array([one[name] for one in model.columns]) for name in names}
            assert self.worst is not None
            return _InvariantShield(
                certificate=self.sha256, proved=_asked(spec, model), worst=self.worst, columns=columns,
                reader=reader, matcher=matcher,
            )  # fmt: skip
        assert made is not None
        assert region is not None
        stays = made.game.stays_inside(region).T & region[:, None]
        table = np.vstack([stays, np.zeros_like(stays[:1])])
        table.setflags(write=False)
        return _GridShield(certificate=self.sha256, grid=made.grid, reader=reader, matcher=matcher, table=table)

    def text(self) -> str:
        """JSON document of a certificate."""
        return json.dumps(_document(self) | {"sha256": self.sha256}, indent=1) + "\n"


def certify(spec: ProvedSpec) -> ShieldCertificate:
    """Solve and prove a shield. Raises ConfigError for a model that makes none, UnprovedShieldError with a
    counterexample, ResourceError without z3."""
    model = checked_model(spec)
    if isinstance(spec, GameShieldConfig):
        made = grid_game(model)
        solved = made.game.winning_region(made.grid.closed)
        proved = _prove_region(spec, model, made, solved.winning, solved=solved)
        return _hashed(
            ShieldCertificate(
                spec=spec,
                assumed=_assumptions(spec, model),
                proved=proved,
                region=_packed(solved.winning),
            )
        )
    proved, worst = _prove_conditions(spec, model)
    return _hashed(ShieldCertificate(spec=spec, assumed=_assumptions(spec, model), proved=proved, worst=worst))


def checked_model(spec: ProvedSpec) -> ControlModel:
    """The model of a spec. Raises ConfigError with every fault, a fallback that is no action included."""
    model = control_model(spec.model)
    if spec.fallback not in model.actions:
        raise ConfigError(f"fallback = {spec.fallback!r}: none of the actions {', '.join(model.actions)}")
    return model


def _assumptions(spec: ProvedSpec, model: ControlModel) -> tuple[str, ...]:
    """What a proof takes for granted, in sentences."""
    game = isinstance(spec, GameShieldConfig)
    discrete = discrete_disturbances(model) if game else {}
    bounds = [
        f"{name} is one of {', '.join(f'{value:.9g}' for value in discrete[name])}, chosen by others as they like"
        if name in discrete
        else f"{name} is between {one.low:.9g} and {one.high:.9g}, chosen by others as they like"
        for name, one in model.config.disturbances.items()
    ]
    moves = [f"{name} after a step is {expression.text}" for name, expression in model.next.items()]
    parts = [f"where {name} is {expression.text}" for name, expression in model.let.items()]
    numbers = [describe_values(model.constants)] if model.constants else []
    return (
        *bounds, *moves, *parts, *numbers,
        f"a decision is made every {model.config.step_s:g} s and carried out at once",
        "sensors tell the state exactly, or on the dangerous side of it",
        *(GRID_ASSUMPTIONS if game else ()),
    )  # fmt: skip


def _prove_region(
    spec: GameShieldConfig,
    model: ControlModel,
    made: GridGame,
    region: Bools,
    *,
    solved: WinningRegion | None = None,
) -> tuple[str, ...]:
    """Prove that a region of the grid is safe forever under the fallback -> the claims, in sentences.

    One pass over all cells: it is not solved again but to find a counterexample. Raises UnprovedShieldError.
    """
    if made.faults:
        raise UnprovedShieldError(*made.faults[:MAX_FAULTS])
    if not region.any():
        raise UnprovedShieldError(
            "the grid does not cover the model: no state of the grid is safe forever by the bounds of its cells; give "
            "the system more room, weaker disturbances or smaller steps, and mark each variable's side that is worse"
        )
    if gaps := made.grid.closure_faults(region, "the region"):
        raise UnprovedShieldError(*gaps)
    fallback = model.actions.index(spec.fallback)
    faults = made.game.region_faults(region, fallback=fallback)
    if len(faults):
        counterexample = _game_counterexample(model, made, solved or made.game.winning_region(made.grid.closed), region)
        raise UnprovedShieldError(
            _failed(
                f"{spec.fallback} may leave the region of {int(region.sum())} states from {len(faults)} of them, for "
                f"example {describe_values(made.grid.state(int(faults[0])))}", counterexample
            ),
            counterexample=counterexample,
        )  # fmt: skip
    return (
        f"{int(region.sum())} of {len(region)} states are safe forever, whatever others do within their bounds",
        f"{spec.fallback} keeps each of them safe, so that a shield that is late or blind may take it",
        f"{model.safe.text} holds in each of them at the end of every step",
        "each step is bounded over whole cells and all disturbances at once, so that a state between cells is covered",
    )


def _prove_conditions(
    spec: InvariantShieldConfig, model: ControlModel
) -> tuple[tuple[str, ...], Mapping[str, float] | None]:
    """Prove an invariant by z3 -> its claims and the worst disturbance. Raises UnprovedShieldError, ResourceError."""
    asked = _asked(spec, model)
    proof = asked.prove()
    last = proof.claims[-1]
    if not last.proved:
        counterexample = _invariant_counterexample(model, last)
        words = f"not proved: {last.claim}"
        raise UnprovedShieldError(
            f"{words} ({last.reason})" if last.reason else _failed(words, counterexample), counterexample=counterexample
        )
    return tuple(claim.claim for claim in proof.claims), proof.worst


def _asked(spec: InvariantShieldConfig, model: ControlModel) -> InvariantModel:
    return invariant_model(model, spec.invariant, model.actions.index(spec.fallback))


def _failed(words: str, found: Counterexample | None) -> str:
    return f"{words}; counterexample: {found.summary()}" if found is not None else words


# --------------------------------------------------------------------------------------------------- opening


def _checked(
    certificate: ShieldCertificate, expected: str
) -> tuple[ControlModel, GridGame | None, Bools | None, tuple[str, ...]]:
    own = _digest(certificate)
    if certificate.sha256 != own:
        raise DataError(
            f"the certificate says sha256 {certificate.sha256[:16]}..., its content has {own[:16]}...: it was changed "
            "after the proof; prove the shield again from its source"
        )
    if expected and expected != own:
        raise DataError(
            f"the certificate has sha256 {own[:16]}..., the service expects {expected[:16]}...: name the certificate "
            "that was approved, or approve this one by its sha256"
        )
    checked = certificate.prove_claims()
    words = (("assumed", certificate.assumed, _assumptions(certificate.spec, checked[0])),
             ("proved", certificate.proved, checked[3]))  # fmt: skip
    for name, written, right in words:
        for place in range(max(len(written), len(right))):
            pair = [lines[place] if place < len(lines) else "nothing" for lines in (written, right)]
            if pair[0] != pair[1]:
                raise DataError(
                    f"the certificate says under {name}[{place}]: {pair[0]!r:.300}; its proof says {pair[1]!r:.300}: "
                    "its text is not that of its proof; prove the shield again from its source"
                )
    return checked


# --------------------------------------------------------------------------------------------------- the file


def read_certificate(path: Path) -> ShieldCertificate:
    """Read a certificate without judging it. Raises DataError for a file that is none."""
    try:
        document = strict_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; make it with `hone shield FILE.toml`") from None
    values = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    if values.get("format") != CERTIFICATE_FORMAT:
        raise DataError(
            f"{path}: not a certificate of a shield of format {CERTIFICATE_FORMAT}; one of an earlier format is proved "
            "again by `hone shield FILE.toml`"
        )
    try:
        return _from_document(values, place=str(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    except ConfigError as error:
        raise DataError(*error.messages) from None


def _from_document(document: Mapping[str, object], *, place: str) -> ShieldCertificate:
    spec = shield_spec(cast("Mapping[str, object]", document["spec"]), place=place)
    if isinstance(spec, RuleShieldConfig):
        raise DataError(f"{place}: rules have no certificate")
    worst = cast("Mapping[str, float] | None", document["worst"])
    return ShieldCertificate(
        spec=spec,
        assumed=tuple(map(str, cast("list[str]", document["assumed"]))),
        proved=tuple(map(str, cast("list[str]", document["proved"]))),
        region=str(document["region"]),
        worst=None if worst is None else {name: float(value) for name, value in worst.items()},
        sha256=str(document["sha256"]),
    )


def _document(certificate: ShieldCertificate) -> dict[str, object]:
    values = {name: value for name, value in asdict(certificate).items() if name not in {"spec", "sha256"}}
    return {"format": CERTIFICATE_FORMAT, "spec": certificate.spec.model_dump(mode="json"), **values}


def _digest(certificate: ShieldCertificate) -> str:
    canonical = json.dumps(_document(certificate), sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def _hashed(certificate: ShieldCertificate) -> ShieldCertificate:
    return replace(certificate, sha256=_digest(certificate))


def _packed(region: Bools) -> str:
    return base64.b64encode(zlib.compress(np.packbits(region).tobytes(), 9)).decode()


def _unpacked(text: str, count: int) -> Bools:
    size = -(-count // 8)
    try:
        opened = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, zlib.error) as error:
        raise DataError(f"the region of the certificate is damaged: {error}") from None
    if len(opened) != size:
        raise DataError(f"the certificate's region has {len(opened)} bytes, its grid of {count} cells needs {size}")
    return np.unpackbits(np.frombuffer(opened, np.uint8), count=count).astype(np.bool_)
