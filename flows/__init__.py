"""What a person starts: Prefect flows and the `spotlight` command line."""

import logging
import os

from storage.errors import SpotlightError

# Read when the libraries are imported.
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
# It warns about torchvision, which is not needed here, whenever a model family is inspected.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


class _OwnErrorsAreOneLine(logging.Filter):
    """A filter for the traceback that Prefect logs for a failed flow or task: our errors need none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], SpotlightError):
            record.exc_info = None
            record.exc_text = None
        return True


class _UndeliveredEventsAreOneLine(logging.Filter):
    """A filter for Prefect's warning and error about each undelivered event while its server is away."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Service %r failed to process item"):
            return False
        if not str(record.msg).startswith("Unable to connect"):
            return True
        first, self._said = not self._said, True
        return first


class _NoLineForAFailedPing(logging.Filter):
    """Filter out the traceback that Prefect logs when its server goes away during a ping."""

    def filter(self, record: logging.LogRecord) -> bool:
        return str(record.msg) != "keepalive ping failed"


class _NoLineForEachTask(logging.Filter):
    """Drop Prefect's lines on completed tasks: several per iteration, they would bury the run's own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.levelno <= logging.INFO and str(record.msg).startswith("Finished in state"))


logging.getLogger("prefect.task_runs").addFilter(_NoLineForEachTask())
logging.getLogger("websockets.client").addFilter(_NoLineForAFailedPing())

for _name in ("prefect.events.clients", "prefect._internal.concurrency"):
    logging.getLogger(_name).addFilter(_UndeliveredEventsAreOneLine())

for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_OwnErrorsAreOneLine())
