"""A serving fleet as a provider: over HTTP, it lends devices that it does not need and calls them back.

There are three requests, all in JSON. `POST /wanted` with `{"devices": 2, "deadline_s": 60.0}` states what
the run could use. `GET /offered` returns the instances lent now:
`{"instances": [{"instance": "gpu-3", "devices": 1, "called_back": ""}]}`; `called_back` is the reason, as
text, why an instance must be given back. `POST /release` with `{"instance": "gpu-3"}` gives one back. The run
polls every second; a silent server's loans continue. `examples/lending_server.py` is a small server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from gpu_runtime.fleet.capacity.protocol import MOST_OFFERED, CapacityProvider, Offer, OfferedInstance
from storage.config.section import Section
from storage.errors import CapacityError, ConfigurationError
from storage.text import one_line

if TYPE_CHECKING:
    import httpx

_ASK_EVERY_S = 1.0

_LAST_TRIES = 3
"""Attempts to return all devices to the lender when the run ends."""

_LATER = (408, 425, 429)
"""Status codes of temporary refusals: the same request may be accepted later."""


class LendingOptions(Section):
    """Options of the provider `lending`, from `[runtime.options]`."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Address of the serving fleet's lender, as in `http://HOST:PORT`."""

    timeout_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds that the lender may take to answer."""

    def check(self) -> None:
        """Check with one request that the lender answers.

        Raises:
            ConfigurationError: the lender does not answer, or its answer is malformed.
        """
        import httpx  # here and below, because commands that must answer within a second import the registry

        try:
            with httpx.Client(base_url=self.url, timeout=self.timeout_s) as client:
                lent_by(client)
        except (CapacityError, httpx.InvalidURL) as error:
            raise ConfigurationError(f"runtime.options.url = {self.url!r}: {error}") from error


class LentInstance(OfferedInstance):
    """An instance in a lender's answer."""

    called_back: str = ""


class LentInstances(Section):
    """The instances that a lender offers."""

    instances: tuple[LentInstance, ...] = Field(max_length=MOST_OFFERED)


def lent_by(client: httpx.Client) -> list[Offer]:
    """Return what a lender offers now.

    Raises:
        CapacityError: the lender does not answer, or its answer is malformed.
    """
    import httpx

    try:
        answer = client.get("/offered").raise_for_status().content
        lent = LentInstances.model_validate_json(answer)
    except httpx.HTTPError as error:
        raise CapacityError(f"the lender does not answer: {one_line(str(error))}") from error
    except ValidationError as error:
        raise CapacityError(f"the lender's answer is malformed: {one_line(str(error))}") from error
    return [Offer(one.instance, one.devices, one.usd_per_hour, one.called_back) for one in lent.instances]


class LendingCapacity(CapacityProvider):
    """A provider that polls a lender in a background thread."""

    def __init__(self, options: LendingOptions, ask_every_s: float = _ASK_EVERY_S) -> None:
        import httpx

        super().__init__()
        self._client = httpx.Client(base_url=options.url, timeout=options.timeout_s)
        self._ask_every_s = ask_every_s
        self._offers: list[Offer] = []
        self._to_say: list[tuple[str, dict[str, Any]]] = []
        self._released: set[str] = set()
        self._refused: set[str] = set()  # releases that the lender refused; not retried
        self._silent = False
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="lending", daemon=True)
        self._thread.start()

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """See `CapacityProvider`."""
        self._say("/wanted", {"devices": devices, "deadline_s": deadline_s})

    def offered(self) -> Sequence[Offer]:
        """See `CapacityProvider`."""
        with self._lock:
            return [offer for offer in self._offers if offer.instance not in self._released]

    def release(self, instance: str) -> None:
        """See `CapacityProvider`."""
        self._say("/release", {"instance": instance})

    def close(self) -> None:
        """Set the wanted number of devices to 0, and give all back before returning."""
        if not self._taken_over():
            self.wanted(0, None)
            for offer in self.offered():
                self.release(offer.instance)
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._client.close()
        kept = [body["instance"] for path, body in self._to_say if path == "/release"]
        self._troubles += [f"{name} may still be lent: the lender did not take it back" for name in kept]

    def _say(self, path: str, body: dict[str, Any]) -> None:
        with self._lock:
            self._to_say.append((path, body))
            if path == "/release":
                self._released.add(body["instance"])
        self._wake.set()

    def _follow(self) -> None:
        last_tries = 0
        while True:
            last_tries += self._closing
            try:
                self._say_all()
                offers = lent_by(self._client)
            except CapacityError as error:
                with self._lock:
                    if not self._silent:  # the first failure of a series
                        self._troubles.append(str(error))
                    self._silent = True
            else:
                with self._lock:
                    self._offers, self._silent = offers, False
                    # An instance still offered after its release reached the lender is a new loan.
                    said = {body["instance"] for path, body in self._to_say if path == "/release"}
                    self._refused &= {offer.instance for offer in offers}
                    self._released &= said | self._refused
                if last_tries:
                    return
            if last_tries == _LAST_TRIES:
                return
            self._wake.wait(self._ask_every_s)
            self._wake.clear()

    def _say_all(self) -> None:
        """Send the messages in order; retry those without an answer, but not refused ones."""
        import httpx

        while True:
            with self._lock:
                if not self._to_say:
                    return
                path, body = self._to_say[0]
            try:
                answer = self._client.post(path, json=body)
                if not answer.is_client_error or answer.status_code in _LATER:
                    answer.raise_for_status()
            except httpx.HTTPError as error:
                raise CapacityError(f"the lender did not accept {path}: {one_line(str(error))}") from error
            with self._lock:
                self._to_say.pop(0)
                if answer.is_client_error:
                    self._troubles.append(f"the lender refused {path} {body} with {answer.status_code}")
                    self._refused |= {body["instance"]} if path == "/release" else set()
