"""Everything a person starts: Prefect flows and the `spotlight` command line."""

import logging
import os

from storage.errors import SpotlightError

# Read when the libraries are imported.
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
# It warns about torchvision, which is not needed here, whenever a model family is inspected.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


ENDED_BY_SIGNAL = "ended by a person or by the system"
"""The message of states of flow and task runs that a signal ended; Prefect's log lines repeat it."""

_UNIMPORTANT = (
    "Service %r failed to process item", "Running hook 'note_process'", "Hook 'note_process' finished",
)  # fmt: skip


class _LessOfPrefect(logging.Filter):
    """Drops lines of Prefect's log that would drown out the lines of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._said_away = False

    def filter(self, record: logging.LogRecord) -> bool:
        said = str(record.msg)
        if record.exc_info and isinstance(record.exc_info[1], SpotlightError):
            record.exc_info = record.exc_text = None  # our errors need no traceback
        if said.startswith("Unable to connect"):  # once per event while the server is away
            first, self._said_away = not self._said_away, True
            return first
        if said == "keepalive ping failed" or said.startswith(_UNIMPORTANT):
            return False
        if ENDED_BY_SIGNAL in record.getMessage():  # else an error for each run that does not complete
            return False
        of_a_task = record.name == "prefect.task_runs" and record.levelno <= logging.INFO
        return not (of_a_task and said.startswith("Finished in state"))


for _name in (
    "prefect.task_runs", "prefect.flow_runs", "prefect.events.clients", "prefect._internal.concurrency",
    "websockets.client",
):  # fmt: skip
    logging.getLogger(_name).addFilter(_LessOfPrefect())
