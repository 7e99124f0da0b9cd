"""The schedule of the reproducibility runs: a cron expression in a time zone, switched on or off."""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass

from storage.errors import ConfigurationError, quoted

_EVERY_NIGHT = "0 2 * * *"


@dataclass(frozen=True)
class Nightly:
    """The schedules of the reproducibility runs.

    Attributes:
        active: True if they run by themselves; otherwise they must be switched on in the Prefect UI.
        cron: minute, hour, day of the month, month, day of the week.
        timezone: name of the zone of the expression.
    """

    active: bool = False
    cron: str = _EVERY_NIGHT
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse values that would fail later, in another process.

        Raises:
            ConfigurationError: the expression does not have five valid fields, or the zone does not exist.
        """
        fields = 'minute, hour, day of the month, month, day of the week, as in "0 2 * * *"'
        if len(self.cron.split()) != 5:
            raise ConfigurationError(
                f"--cron {quoted(self.cron)} has {len(self.cron.split())} fields, not 5: {fields}"
            )
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"--timezone {quoted(self.timezone)} is no zone that this machine knows; write UTC, or a "
                "name such as Europe/Berlin"
            ) from error
        if self.cron == _EVERY_NIGHT:
            return
        from flows.server.prefect_server import files_ignored

        try:
            with files_ignored():
                from prefect.client.schemas.schedules import CronSchedule  # it takes a second

                CronSchedule(cron=self.cron, timezone=self.timezone)
        except ValueError as error:
            raise ConfigurationError(
                f"--cron {quoted(self.cron)} is no cron expression; its fields are {fields}"
            ) from error

    def arguments(self) -> list[str]:
        """Return the schedule as arguments of `flows.deployed.serving`."""
        return ["--cron", self.cron, "--timezone", self.timezone, *(["--schedule"] if self.active else [])]

    def in_words(self) -> str:
        """Describe the schedule for the person who started it."""
        when = f"{self.cron!r} in {self.timezone}"
        return f"on, {when}" if self.active else f"off (`spotlight up --schedule` runs them {when})"
