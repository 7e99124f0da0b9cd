"""What the standbys of a run have used of their hosts: worker processes that wait for a place to be free."""

from __future__ import annotations

from dataclasses import dataclass

from storage.record.reading import RecordConnection


@dataclass(frozen=True)
class StandbyAccount:
    """What the standbys of one name have used; each life of a run has one of that name.

    Attributes:
        waited_s: seconds that it was kept, its loading included.
        cpu_s: processor time.
        memory_bytes: resident memory, the largest reading.
        taken: how often it took a lost worker's place.
        lost: how often it died before.
    """

    standby: str
    waited_s: float
    cpu_s: float
    memory_bytes: int
    taken: int
    lost: int


def standby_accounts(connection: RecordConnection, run_id: str) -> tuple[StandbyAccount, ...]:
    """The accounts of a run's standbys, by name; empty where none was recorded."""
    rows = connection.execute(
        "SELECT standby, sum(waited_s), sum(cpu_s), max(memory_bytes), sum(taken)::BIGINT, sum(lost)::BIGINT "
        "FROM standby_time WHERE run_id = ? GROUP BY standby "
        "ORDER BY split_part(standby, '-', 2)::INTEGER",
        [run_id],
    ).fetchall()
    return tuple(StandbyAccount(*row) for row in rows)
