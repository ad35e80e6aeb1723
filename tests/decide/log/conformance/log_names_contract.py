"""The contract of names and learners in a log, one suite for every engine: claims of ids and keys, leases, states."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from log_contract import LogEngine
from log_records import all_of, bits, decision, outcome

from hone.core.decisions import ActionSet
from hone.decide.log.protocol import CHECKPOINT, KnownNames, NameTakenError, RecordClaim
from hone.decide.log.relational import RelationalLog


class LogNamesContract:
    """What a log does with names, leases and states, whichever engine stores it."""

    def test_an_id_and_a_key_belong_to_their_first_record_for_ever(self, engine: LogEngine) -> None:
        log = engine.open()
        features = ActionSet(names=("x", "y", "z"))
        first, paid = decision(0, id="d", actions=features), outcome(0, of="d")
        log.append([first, paid], [RecordClaim(place=0), RecordClaim(place=1, key="k", digest=b"\x00:\n\xff" * 4)])
        other = engine.open()
        found = other.find("shop", ids=["d", "e"], keys=["k", "d"])
        assert {name: bits(one) for name, one in found.decisions.items() if one} == {"d": bits(first)}
        assert found.keys == {"k": b"\x00:\n\xff" * 4}
        assert other.find("bank", ids=["d"], keys=["k"]) == KnownNames(decisions={}, keys={})
        with pytest.raises(NameTakenError) as caught:
            other.append(
                [decision(0, source="b", id="new"), decision(1, source="b", id="d"), outcome(1, of="e")],
                [RecordClaim(place=0), RecordClaim(place=1), RecordClaim(place=2, key="k")],
            )
        assert caught.value.places == (1, 2)
        assert len(all_of(log)) == 2
        assert other.append([first, paid], [RecordClaim(place=0), RecordClaim(place=1, key="k")]).repeated == 2
        assert other.append([decision(0, source="b", id="d")]).stored == 1  # without a claim both are kept
        assert bits(log.find("shop", ids=["d"]).decisions["d"]) == bits(first)
        log.retire([one.position for one in log.read()])
        assert log.find("shop", ids=["d"], keys=["k"]) == KnownNames(decisions={"d": None}, keys=found.keys)
        with pytest.raises(NameTakenError):
            log.append([decision(2, id="d")], [RecordClaim(place=0)])
        log.close()
        other.close()

    def test_an_erased_decision_keeps_its_name_and_loses_its_content(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(0, id="d", unit="eve")], [RecordClaim(place=0)])
        log.erase("shop", "eve")
        log.append([decision(1, id="late", unit="eve")], [RecordClaim(place=0)])
        assert log.find("shop", ids=["d", "late"]).decisions == {"d": None, "late": None}
        log.close()

    def test_of_writers_that_claim_one_name_at_once_one_has_it(self, engine: LogEngine) -> None:
        logs = [engine.open() for _ in range(2)]
        start, won = threading.Barrier(4), list[str]()

        def write(place: int) -> None:
            start.wait()
            for number in range(12):
                record = decision(number, source=f"g{place}", id=f"d{number}")
                try:
                    logs[place % 2].append([record], [RecordClaim(place=0)])
                    won.append(record.id)
                except NameTakenError:
                    continue

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        assert sorted(won) == sorted(f"d{number}" for number in range(12))
        assert sorted(one.id for one in all_of(logs[0])) == sorted(won)  # type: ignore[union-attr]
        for log in logs:
            log.close()

    def test_many_names_are_found_at_once(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(seq, id=f"d{seq}") for seq in range(600)])
        found = log.find("shop", ids=[f"d{seq}" for seq in range(0, 1200, 2)])
        assert {name: one.seq for name, one in found.decisions.items() if one} == {
            f"d{seq}": seq for seq in range(0, 600, 2)
        }
        log.close()

    def test_an_acknowledgement_tells_the_place_of_its_records(self, engine: LogEngine) -> None:
        log, other = engine.open(), engine.open()
        first = log.append([decision(0), decision(1)])
        assert (first.after, first.position) == (first.after, log.read()[-1].position)
        assert first.after < log.read()[0].position
        second = log.append([decision(2)])
        assert second.after == first.position
        other.append([outcome(0)])
        third = log.append([decision(3), decision(3)])
        assert third.after > second.position
        assert [one.position for one in log.read(third.after)] == [third.position]
        again = log.append([decision(3)])
        assert (again.after, again.position) == (0, 0)
        log.close()
        other.close()

    def test_a_lease_has_one_holder_and_each_new_one_a_higher_epoch(self, engine: LogEngine) -> None:
        log, other = engine.open(), engine.open()
        mine = log.take_lease("w", "a", now_s=100.0, lease_s=10.0)
        assert (mine.holder, mine.epoch, mine.until_s) == ("a", 1, 110.0)
        assert other.take_lease("w", "b:1", now_s=109.0, lease_s=10.0) == mine
        assert other.take_lease("v", "b:1", now_s=109.0, lease_s=10.0).holder == "b:1"
        longer = log.take_lease("w", "a", now_s=109.5, lease_s=10.0, epoch=1)
        assert (longer.epoch, longer.until_s) == (1, 119.5)
        late = log.take_lease("w", "a", now_s=200.0, lease_s=10.0, epoch=1)  # run out, and nobody took it
        assert (late.holder, late.epoch) == ("a", 1)
        theirs = other.take_lease("w", "b:1", now_s=210.0, lease_s=10.0)
        assert (theirs.holder, theirs.epoch) == ("b:1", 2)
        assert log.take_lease("w", "a", now_s=211.0, lease_s=10.0, epoch=1) == theirs
        again = other.take_lease("w", "b:1", now_s=212.0, lease_s=10.0)  # started again
        assert again.epoch == 3
        other.give_lease_back(theirs)  # of an earlier epoch: without effect
        assert log.take_lease("w", "a", now_s=213.0, lease_s=10.0) == again
        other.give_lease_back(again)
        assert log.take_lease("w", "a", now_s=213.0, lease_s=10.0).epoch == 4
        log.close()
        other.close()

    def test_a_learner_whose_lease_has_run_out_saves_nothing(self, engine: LogEngine) -> None:
        log, other = engine.open(), engine.open()
        old = log.take_lease("w", "a", now_s=100.0, lease_s=10.0)
        assert log.save_learnt(old, {"v": b"1", "u": b"\x00\xff"}, now_s=109.0)
        assert not log.save_learnt(old, {"v": b"2"}, now_s=110.0)
        new = other.take_lease("w", "b", now_s=111.0, lease_s=10.0)
        assert not log.save_learnt(old, {"v": b"3"}, now_s=109.0)  # by a clock that goes slow
        found = other.learnt("w", {"v": 0, "u": 0, "x": 0})
        assert {name: state.body for name, state in found.items()} == {"v": b"1", "u": b"\x00\xff"}
        assert other.save_learnt(new, {"v": b"4"}, now_s=112.0)
        changed = log.learnt("w", {name: state.number for name, state in found.items()})
        assert {name: state.body for name, state in changed.items()} == {"v": b"4"}
        assert log.learnt("other", {"v": 0}) == {}
        assert list(log.learnt("w", {"v": 0})) == ["v"]
        log.close()
        other.close()

    def test_an_erasure_deletes_checkpoints_and_fences_learners(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(0, unit="eve")])
        lease = log.take_lease("w", "a", now_s=100.0, lease_s=10.0)
        log.save_learnt(lease, {CHECKPOINT: b"eve", "version": b"v"}, now_s=100.0)
        log.erase("shop", "eve")
        assert list(log.learnt("w", {CHECKPOINT: 0, "version": 0})) == ["version"]
        assert not log.save_learnt(lease, {CHECKPOINT: b"eve"}, now_s=101.0)
        assert log.take_lease("w", "a", now_s=101.0, lease_s=10.0, epoch=lease.epoch).epoch > lease.epoch + 1
        log.close()

    def test_ids_of_a_log_of_an_earlier_hone_are_known(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(0, id="d"), outcome(0, of="d"), decision(1, id="e", tenant="bank")])
        if isinstance(log, RelationalLog):
            with log.session.transaction(write=True):
                log.session.run("delete from names")
                log.session.run("delete from log_meta where name = 'names'")
        else:
            log._ask("DEL", "{hone}:decisions:names")  # type: ignore[attr-defined]
            log._ask("HDEL", "{hone}:decisions:meta", "names")  # type: ignore[attr-defined]
        assert log.find("shop", ids=["d"]).decisions == {}
        log.close()
        log = engine.open()
        assert bits(log.find("shop", ids=["d"]).decisions["d"]) == bits(decision(0, id="d"))  # type: ignore[arg-type]
        assert log.find("bank", ids=["e", "d"]).decisions.keys() == {"e"}
        log.close()
