"""A log against a dictionary: a random client does everything that clients do, in any order."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from log_contract import LogEngine
from log_records import Key, all_of, bits, decision, key_of, outcome

from hone.core.decisions import Decision, DecisionRecord
from hone.decide.log.protocol import DecisionLog

TENANTS = st.sampled_from(["a", "b"])
SEQS = st.integers(0, 9)
UNITS = st.sampled_from(["u0", "u1", "u2"])


class LogMachine(RuleBasedStateMachine):
    """A log, and the dictionary that says what it holds; None stands for a seq that is known without its content."""

    engine: LogEngine

    def __init__(self) -> None:
        super().__init__()
        self.log: DecisionLog | None = None
        self.held: dict[Key, DecisionRecord | None] = {}
        self.erased: set[tuple[str, str, str]] = set()
        self.repeated = self.refused = 0

    @initialize()
    def begin(self) -> None:
        self.log = self.engine.open()

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """A batch of records, new, known, or known with other content."""
        assert self.log is not None
        batch = [self.draw_record(data) for _ in range(data.draw(st.integers(1, 6)))]
        ack = self.log.append(batch)
        stored = repeated = erased = 0
        refused: list[Key] = []
        for record in batch:
            if isinstance(record, Decision) and key_of(record) not in self.held and self.is_erased(record):
                self.erase_decisions(record.tenant, {record.id})
        for record in batch:
            key = key_of(record)
            held = self.held.get(key)
            if key not in self.held:
                self.held[key] = None if self.is_erased(record) else record
                stored, erased = stored + (self.held[key] is not None), erased + (self.held[key] is None)
            elif held is None or bits(held) == bits(record):
                repeated += 1
            else:
                refused.append(key)
        self.repeated, self.refused = self.repeated + repeated, self.refused + len(refused)
        assert (ack.stored, ack.repeated, ack.erased) == (stored, repeated, erased)
        assert [(one.tenant, one.source, one.seq) for one in ack.refused] == refused

    def draw_record(self, data: st.DataObject) -> DecisionRecord:
        tenant, seq = data.draw(TENANTS), data.draw(SEQS)
        if data.draw(st.booleans()):
            version = data.draw(st.sampled_from(["v1"] * 9 + ["v2"]))
            return decision(seq, tenant=tenant, unit=f"u{seq % 3}", version=version)
        return outcome(seq, tenant=tenant, of=f"web-{(seq * 7) % 10}")

    def is_erased(self, record: DecisionRecord) -> bool:
        """Whether a new record is erased at once."""
        own = ("unit", record.unit) if isinstance(record, Decision) else ("decision", record.decision_id)
        return (own[0], record.tenant, own[1]) in self.erased

    def erase_decisions(self, tenant: str, ids: set[str]) -> None:
        self.erased |= {("decision", tenant, one) for one in ids}
        for key, held in self.held.items():
            if held is not None and held.tenant == tenant and not isinstance(held, Decision):
                self.held[key] = None if held.decision_id in ids else held

    @rule(tenant=TENANTS, unit=UNITS)
    def erase(self, tenant: str, unit: str) -> None:
        """Erasure of a unit."""
        assert self.log is not None
        before = sum(one is not None for one in self.held.values())
        own = [one for one in self.held.values() if isinstance(one, Decision)]
        ids = {one.id for one in own if (one.tenant, one.unit) == (tenant, unit)}
        assert self.log.decision_ids(tenant, unit) == tuple(sorted(ids))
        self.erased.add(("unit", tenant, unit))
        self.erase_decisions(tenant, ids)
        for key, held in self.held.items():
            if isinstance(held, Decision) and (held.tenant, held.unit) == (tenant, unit):
                self.held[key] = None
        assert self.log.erase(tenant, unit) == before - sum(one is not None for one in self.held.values())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        """Retirement of some of the records."""
        assert self.log is not None
        chosen = [one for one in self.log.read(0, 100) if data.draw(st.booleans())]
        assert self.log.retire([one.position for one in chosen]) == len(chosen)
        self.held.update({key_of(one.record): None for one in chosen})

    @rule()
    def reopen(self) -> None:
        """A new process."""
        assert self.log is not None
        self.log.close()
        self.log = self.engine.open()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if self.log is None:
            return
        held = {key: bits(one) for key, one in self.held.items() if one is not None}
        assert {key_of(one): bits(one) for one in all_of(self.log)} == held
        counts = self.log.counts()
        assert counts.decisions + counts.outcomes == len(held)
        assert (counts.repeated, counts.refused) == (self.repeated, self.refused)
        assert counts.erased + counts.retired == len(self.held) - len(held)
        for mark in self.log.watermarks():
            seqs = {seq for tenant, source, seq in self.held if (tenant, source) == (mark.tenant, mark.source)}
            first_gap = next(seq for seq in range(11) if seq not in seqs)
            assert (mark.watermark, mark.highest) == (first_gap - 1, max(seqs))
            assert mark.missing == mark.highest + 1 - len(seqs)

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()


def check_against_model(fresh: Callable[[], LogEngine], *, runs: int) -> None:
    """Run a random client `runs` times, each on an empty log."""

    class FreshMachine(LogMachine):
        @initialize()
        def begin(self) -> None:
            self.engine = fresh()
            self.log = self.engine.open()

    run_state_machine_as_test(
        FreshMachine, settings=settings(max_examples=runs, stateful_step_count=12, deadline=None, database=None)
    )
