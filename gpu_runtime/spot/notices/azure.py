"""Azure: scheduled events of type Preempt, half a minute before a spot machine is taken away."""

from __future__ import annotations

from typing import Any

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.watch import MetadataWatcher, json_object, unexpected, unix_seconds

EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}


class AzureNotices(MetadataWatcher):
    """Watches the scheduled events for a Preempt of this machine.

    The service reports events of the whole scale set to each of its machines, so those of other machines
    are ignored. Its first answer after a start may take minutes; until then polls time out.
    """

    provider = "azure"
    url = "http://169.254.169.254"
    _vm_name: str | None = None

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher`; the earliest of several events counts."""
        name = self._name().casefold()
        answer = self.ask(EVENTS_PATH, _HEADERS)
        if answer.status != 200:
            raise unexpected(answer, "Azure's scheduled events")
        events = json_object(answer.text, "Azure's scheduled events").get("Events")
        if not isinstance(events, list):
            raise unexpected(answer, "Azure's scheduled events hold no list of Events")
        notices = [self._notice(event, now) for event in events if _takes(event, name)]
        return min(notices, key=lambda notice: (notice.deadline or now, notice.detail), default=None)

    def _notice(self, event: dict[str, Any], now: float) -> Notice:
        # An event that has started has no NotBefore any more: the machine may vanish at any moment.
        start = event.get("NotBefore")
        return self.notice(
            unix_seconds(start) if start else now, now, f"Preempt, event {event.get('EventId')}"
        )

    def _name(self) -> str:
        if self._vm_name is None:
            answer = self.ask(NAME_PATH, _HEADERS)
            if answer.status != 200 or not answer.text:
                raise unexpected(answer, "Azure did not give this machine's name")
            self._vm_name = answer.text
        return self._vm_name


def _takes(event: object, name: str) -> bool:
    """Return True if an event preempts the machine of that (case-folded) name."""
    if not isinstance(event, dict) or event.get("EventType") != "Preempt":
        return False
    resources = event.get("Resources")
    return isinstance(resources, list) and any(str(resource).casefold() == name for resource in resources)
