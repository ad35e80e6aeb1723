"""Leases in the registry: of several processes that could do a work, one does it until it stops or dies.

A lease is a promise for a time, not a lock: a holder that was stopped for longer than its lease may still be at work
when the next one begins. What a holder writes must therefore be refused by its place, as the journal of a rollout does
with its numbers.
"""

from typing import Final

from hone.decide.registry.registry import VersionRegistry
from hone.decide.registry.schema import transaction

_TABLE: Final = (
    "create table if not exists leases (work text primary key, holder text not null, until_s real not null) "
    "without rowid"
)


def take_lease(registry: VersionRegistry, work: str, holder: str, *, now_s: float, lease_s: float) -> str:
    """Take or extend the lease of a work -> its holder: `holder` itself, or the one that has it.

    A holder whose lease has run out loses it to whoever asks first. Raises DataError and ResourceError.
    """
    with transaction(registry.database) as connection:
        connection.execute(_TABLE)  # a registry of an earlier hone has none
        connection.execute(
            "insert into leases values (?, ?, ?) on conflict (work) do update set holder = excluded.holder, "
            "until_s = excluded.until_s where leases.holder = excluded.holder or leases.until_s < ?",
            (work, holder, now_s + lease_s, now_s),
        )
        row = connection.execute("select holder from leases where work = ?", (work,)).fetchone()
        return str(row[0])


def give_lease_back(registry: VersionRegistry, work: str, holder: str) -> None:
    """End a lease at once; without effect for another's. Raises DataError and ResourceError."""
    with transaction(registry.database) as connection:
        connection.execute(_TABLE)
        connection.execute("delete from leases where work = ? and holder = ?", (work, holder))
