"""The schedule of the reproducibility runs: a cron expression in a time zone, switched on or off."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass

from storage.errors import ConfigurationError, quoted

_RANGES = {
    "minute": (0, 59), "hour": (0, 23), "day of the month": (1, 31), "month": (1, 12),
    "day of the week": (0, 7),
}  # fmt: skip
_NAMES = {  # by the greatest number of their field
    12: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    7: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}


@dataclass(frozen=True)
class Nightly:
    """The schedule.

    Attributes:
        active: True if they run by themselves; otherwise they must be switched on in the Prefect UI.
        cron: minute, hour, day of the month, month, day of the week.
        timezone: name of the zone of the expression.
    """

    active: bool = False
    cron: str = "0 2 * * *"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse values that would fail later, in another process.

        Raises:
            ConfigurationError: the expression is of another form, or the zone does not exist.
        """
        parts = self.cron.split()
        if len(parts) != len(_RANGES):
            raise ConfigurationError(
                f"--cron {quoted(self.cron)} has {len(parts)} fields, not {len(_RANGES)}: "
                f'{", ".join(_RANGES)}, as in "0 2 * * *"'
            )
        for part, (name, (least, most)) in zip(parts, _RANGES.items(), strict=True):
            if not all(_is_cron(one, least, most) for one in part.split(",")):
                raise ConfigurationError(
                    f"--cron {quoted(self.cron)}: {quoted(part)} is no {name}; write *, a number from "
                    f"{least} to {most}, a range such as {least}-{most}, a step such as */2, or several with "
                    "commas between"
                )
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"--timezone {quoted(self.timezone)} is no zone that this machine knows; write UTC, or a "
                "name such as Europe/Berlin"
            ) from error

    def in_words(self) -> str:
        """Describe the schedule for the person who started it."""
        when = f"{self.cron!r} in {self.timezone}"
        return f"on, {when}" if self.active else f"off (`spotlight up --schedule` runs them {when})"


def _is_cron(text: str, least: int, most: int) -> bool:
    """Return True if `text` is `*`, a value or a range of a field, perhaps with a step."""
    found = re.fullmatch(r"(\*|(\w+)(?:-(\w+))?)(?:/([1-9]\d{0,3}))?", text, re.ASCII)
    if found is None:
        return False
    return all(
        value.lower() in _NAMES.get(most, ()) or (value.isdigit() and least <= int(value[:4]) <= most)
        for value in found.group(2, 3)
        if value is not None
    )
