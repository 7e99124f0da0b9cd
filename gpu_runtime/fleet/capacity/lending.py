"""A serving fleet as a provider: over HTTP it lends devices that it does not need, and calls them back.

Three requests, all of JSON. `POST /wanted` with `{"devices": 2, "deadline_s": 60.0}` says what the run
could use. `GET /offered` answers `{"instances": [{"instance": "gpu-3", "devices": 1, "called_back": ""}]}`:
what is lent now; `called_back` says in words why an instance has to be given back. `POST /release` with
`{"instance": "gpu-3"}` gives one back. The run asks every second; a server that does not answer keeps what
it lent until it says otherwise. `examples/lending_server.py` is a small server of this form.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from gpu_runtime.fleet.capacity.protocol import Offer
from storage.config.section import Section
from storage.errors import CapacityError, ConfigurationError
from storage.text import one_line

if TYPE_CHECKING:
    import httpx

_ASK_EVERY_S = 1.0

_LAST_TRIES = 3
"""So often a lender is asked to take all back, once the run ends."""

_LATER = (408, 425, 429)
"""Refusals for now: the same message may be taken later."""


class LendingOptions(Section):
    """What the provider `lending` reads of `[runtime.options]`."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Address of the serving fleet's lender, as in `http://HOST:PORT`."""

    timeout_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds that it may take to answer."""

    def check(self) -> None:
        """Ask the lender once.

        Raises:
            ConfigurationError: it does not answer, or otherwise than a lender does.
        """
        import httpx  # here, as below: the registry is imported by commands that answer within a second

        try:
            with httpx.Client(base_url=self.url, timeout=self.timeout_s) as client:
                lent_by(client)
        except (CapacityError, httpx.InvalidURL) as error:
            raise ConfigurationError(f"runtime.options.url = {self.url!r}: {error}") from error


class LentInstance(Section):
    """An instance in a lender's answer."""

    instance: str = Field(min_length=1, max_length=200)
    devices: int = Field(default=1, ge=1, le=1024)
    usd_per_hour: float | None = Field(default=None, ge=0, le=1e6)
    called_back: str = ""


class LentInstances(Section):
    """What a lender offers."""

    instances: tuple[LentInstance, ...] = Field(max_length=1024)


def lent_by(client: httpx.Client) -> list[Offer]:
    """What a lender offers now.

    Raises:
        CapacityError: it does not answer, or otherwise than a lender does.
    """
    import httpx

    try:
        answer = client.get("/offered").raise_for_status().content
        lent = LentInstances.model_validate_json(answer)
    except httpx.HTTPError as error:
        raise CapacityError(f"the lender does not answer: {one_line(str(error))}") from error
    except ValidationError as error:
        raise CapacityError(f"the lender answers otherwise than a lender: {one_line(str(error))}") from error
    return [Offer(one.instance, one.devices, one.usd_per_hour, one.called_back) for one in lent.instances]


class LendingCapacity:
    """Asks a lender in a thread of its own.

    Args:
        options: where it is.
        ask_every_s: seconds between two questions.
    """

    def __init__(self, options: LendingOptions, ask_every_s: float = _ASK_EVERY_S) -> None:
        import httpx

        self._client = httpx.Client(base_url=options.url, timeout=options.timeout_s)
        self._ask_every_s = ask_every_s
        self._lock = threading.Lock()
        self._offers: list[Offer] = []
        self._to_say: list[tuple[str, dict[str, Any]]] = []
        self._released: set[str] = set()
        self._refused: set[str] = set()  # released, but the lender says no: not released again
        self._troubles: list[str] = []
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

    def take_troubles(self) -> list[str]:
        """See `CapacityProvider`."""
        with self._lock:
            taken, self._troubles = self._troubles, []
        return taken

    def close(self) -> None:
        """Want none any more, and give all back, before this returns."""
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
                self._on_silence(str(error))
            else:
                with self._lock:
                    self._offers, self._silent = offers, False
                    # What is still offered after its release has reached the lender is lent anew.
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
        """Send the messages in order; one that got no answer is sent again, one that was refused is not."""
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
                raise CapacityError(f"the lender does not take {path}: {one_line(str(error))}") from error
            with self._lock:
                self._to_say.pop(0)
                if answer.is_client_error:
                    self._troubles.append(f"the lender refused {path} {body} with {answer.status_code}")
                    self._refused |= {body["instance"]} if path == "/release" else set()

    def _on_silence(self, trouble: str) -> None:
        """Note the first failure of a series."""
        with self._lock:
            if not self._silent:
                self._troubles.append(trouble)
            self._silent = True
