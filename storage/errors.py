"""Every error that Spotlight raises on purpose.

Each inherits `SpotlightError` and the standard type a caller would expect, takes one message (so that it
survives pickling between processes), and gives the value, the limit and the next step.
"""

from __future__ import annotations

_SHOWN_CHARACTERS = 120
"""The number of characters of a value that a message shows."""


def quoted(value: object) -> str:
    """Return a value for a message: in quotes, control characters escaped, cut if it is long."""
    return shortened(repr(value))


def shortened(text: str) -> str:
    """Return a text for a message: cut if it is long."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


class SpotlightError(Exception):
    """Base of all errors that Spotlight raises on purpose."""


class ConfigurationError(SpotlightError, ValueError):
    """A setting is missing, unknown or out of range; raised before anything starts."""


class PromptFileError(SpotlightError, ValueError):
    """A prompt file is missing or a row of it is malformed."""


class ModelError(SpotlightError, RuntimeError):
    """A model's files are missing or do not fit the configuration."""


class RewardError(SpotlightError, RuntimeError):
    """The scorer failed on every image of a batch, or returned an invalid score."""


class TrainingError(SpotlightError, RuntimeError):
    """Training stopped itself: ratio off, non-finite loss, or a sync that changed nothing."""


class HackingError(SpotlightError, RuntimeError):
    """A run ended, as its settings demand, because its score rose while its images got worse."""


class NonFiniteError(SpotlightError, ArithmeticError):
    """A sample became NaN or infinite while it was generated."""


class RuntimeFailure(SpotlightError, RuntimeError):
    """An essential actor of the run died, or no worker is left."""


class ClusterLostError(RuntimeFailure):
    """A cluster process that all its runs need has ended."""


class WorkerLostError(SpotlightError, RuntimeError):
    """A worker's process is gone; another worker can do its leased work."""


class DeviceFaultError(WorkerLostError):
    """A worker's device failed or ran out of memory: its process is unusable and must be ended."""


class SchedulingError(SpotlightError, ValueError):
    """A call contradicts the scheduler's state: a request twice, a commit past the end, an unknown device."""


class CheckpointError(SpotlightError, RuntimeError):
    """A checkpoint is missing, incomplete or fails its checksum."""


class StorageError(SpotlightError, RuntimeError):
    """A file of a run or of a home cannot be read or written."""


class TakenOverError(StorageError):
    """Another process has taken over the run that this one drives; it must not change the record."""


class DriftError(SpotlightError, RuntimeError):
    """The result of a reproduction differs from the recorded run."""


class RunNotFoundError(SpotlightError, LookupError):
    """No run has the given identifier."""


class RunCancelledError(SpotlightError, RuntimeError):
    """Work was cancelled in the Prefect UI; a run can be resumed."""


class ServerError(SpotlightError, RuntimeError):
    """A server did not start, cannot be reached or refuses: Prefect's, the dashboard, the hub."""


class NoticeError(SpotlightError, RuntimeError):
    """A provider's metadata service did not tell whether it will take this machine."""


class CapacityError(SpotlightError, RuntimeError):
    """A provider of spot instances did not do as asked."""


class TraceError(SpotlightError, ValueError):
    """A trace of spot instances is missing, malformed or contradicts itself."""


class PriceNotFoundError(SpotlightError, LookupError):
    """The price book has no such price, or the offer is unavailable."""


class GroupBrokenError(SpotlightError, RuntimeError):
    """A sequence-parallel group lost a member or was dissolved; its members can continue in another one."""
