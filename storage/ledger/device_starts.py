"""Devices of a run that could not start: how often, and which never joined, with the reason."""

from __future__ import annotations

import json
from dataclasses import dataclass

from storage.config.runtime import AUTO, FIXED_CAPACITY
from storage.record.reading import RecordConnection


@dataclass(frozen=True)
class UnjoinedDevice:
    """A device of the run's settings that never joined.

    Attributes:
        device: its slot, such as `spot-1`.
        failures: workers for it that ended while they loaded.
        reason: why the last of them did; where there was none, that no instance had room.
    """

    device: str
    failures: int
    reason: str


def failed_starts(connection: RecordConnection, run_id: str) -> int:
    """How many workers of a run ended while they loaded."""
    row = connection.execute(
        "SELECT count(*) FROM device_events WHERE run_id = ? AND kind = 'failed'", [run_id]
    ).fetchone()
    return 0 if row is None else int(row[0])


def unjoined_devices(connection: RecordConnection, run_id: str) -> tuple[UnjoinedDevice, ...]:
    """The devices that never joined a run in which others did, in the order of the settings."""
    config = connection.execute("SELECT config FROM runs WHERE run_id = ?", [run_id]).fetchone()
    events = connection.execute(
        """
        SELECT split_part(worker, '.', 1) AS slot, bool_or(kind = 'joined'),
            count(*) FILTER (kind = 'failed'), arg_max(detail, happened_at) FILTER (kind = 'failed')
        FROM device_events WHERE run_id = ? GROUP BY slot
        """,
        [run_id],
    ).fetchall()
    joined = {slot for slot, has_joined, *_ in events if has_joined}
    if config is None or not joined:
        return ()
    failures = {slot: (count, detail) for slot, _, count, detail in events if count}
    runtime = json.loads(config[0]).get("runtime", {})
    found = []
    for market in ("reserved", "spot"):
        count = runtime.get(f"{market}_workers", 0)
        # With `auto` there is a slot for each device that the cluster had; a number may be the most alone.
        decided = market == "spot" and runtime.get("capacity", FIXED_CAPACITY) != FIXED_CAPACITY
        asked = (
            [slot for slot in failures if slot.startswith(f"{market}-")]
            if count == AUTO or decided
            else range(count)
        )
        for slot in (one if isinstance(one, str) else f"{market}-{one}" for one in asked):
            if slot not in joined:
                count, reason = failures.get(slot, (0, f"no {market} instance had room for it"))
                found.append(UnjoinedDevice(slot, count, reason))
    return tuple(found)
