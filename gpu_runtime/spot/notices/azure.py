"""Azure: scheduled events of type Preempt, half a minute before a spot machine is taken away."""

from __future__ import annotations

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
        if self._vm_name is None:
            answer = self.ask(NAME_PATH, _HEADERS)
            if answer.status != 200 or not answer.text:
                raise unexpected(answer, "Azure did not give this machine's name")
            self._vm_name = answer.text.casefold()
        answer = self.ask(EVENTS_PATH, _HEADERS)
        if answer.status != 200:
            raise unexpected(answer, "Azure's scheduled events")
        events = json_object(answer.text, "Azure's scheduled events").get("Events")
        if not isinstance(events, list):
            raise unexpected(answer, "Azure's scheduled events hold no list of Events")
        notices: list[Notice] = []
        for event in events:
            if not isinstance(event, dict) or event.get("EventType") != "Preempt":
                continue
            machines = event.get("Resources")
            if isinstance(machines, list) and self._vm_name in (str(name).casefold() for name in machines):
                # An event that has started has no NotBefore any more: the machine may vanish at any moment.
                start = event.get("NotBefore")
                at = unix_seconds(start) if start else now
                notices.append(self.notice(at, now, f"Preempt, event {event.get('EventId')}"))
        return min(notices, key=lambda notice: (notice.deadline or now, notice.detail), default=None)
