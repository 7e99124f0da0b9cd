"""When the reproducibility runs are due: a cron expression in a time zone, switched on or off."""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass

from storage.errors import ConfigurationError

_FIELDS = 5


@dataclass(frozen=True)
class Nightly:
    """The schedules of the reproducibility runs.

    Attributes:
        active: whether they run by themselves; otherwise they wait in the Prefect UI to be switched on.
        cron: minute, hour, day of the month, month, day of the week.
        timezone: name of the zone that these are meant in.
    """

    active: bool = False
    cron: str = "0 2 * * *"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse what would fail later, in another process.

        Raises:
            ConfigurationError: the expression has not five fields, or there is no such zone.
        """
        if len(self.cron.split()) != _FIELDS:
            raise ConfigurationError(
                f"--cron {self.cron!r} has {len(self.cron.split())} fields, not {_FIELDS}: minute, hour, day "
                'of the month, month, day of the week, as in "0 2 * * *"'
            )
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"--timezone {self.timezone!r} is no zone that this machine knows; write UTC, or a name "
                "such as Europe/Berlin"
            ) from error

    def arguments(self) -> list[str]:
        """Itself as arguments of `flows.serving`."""
        return ["--cron", self.cron, "--timezone", self.timezone, *(["--schedule"] if self.active else [])]

    def in_words(self) -> str:
        """For the person who started it."""
        when = f"{self.cron!r} in {self.timezone}"
        return f"on, {when}" if self.active else f"off (`spotlight up --schedule` runs them {when})"
