"""Two of the user's shell commands as a provider: one acquires instances, the other gives one back.

`acquire` reads `{"devices": 2, "deadline_s": 60.0, "cluster": "10.0.0.5:6379", "held": ["i-1"]}` from its
standard input and writes `{"instances": [{"instance": "i-2", "devices": 2, "usd_per_hour": 2.5}]}` to its
standard output; `devices` and `usd_per_hour` are optional. It may return fewer devices than requested, or
none; the next iteration asks again. `release` reads `{"instance": "i-2"}`, even for an instance that is
already gone. Both must exit with status 0; otherwise their standard error is shown.

The run's folder has the names of all instances that may be rented (`keep_in`), so that the next life of a
killed run uses or releases them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pydantic import Field, ValidationError

from gpu_runtime.fleet.capacity.protocol import MOST_OFFERED, CapacityProvider, Offer, OfferedInstance
from storage.config.section import Section
from storage.errors import CapacityError, ConfigurationError, StorageError, quoted
from storage.processes import environment_for_others
from storage.record.files import read_json, write_json
from storage.text import one_line

_SHELL = "/bin/sh"
_OF_THE_SHELL = {".", "case", "cd", "eval", "exec", "export", "for", "if", "set", "until", "while"}
_CLOSE_S = 60.0
"""Seconds that `acquire` may keep running after the run ends."""


class CommandOptions(Section):
    """Options of the provider `command`, from `[runtime.options]`."""

    acquire: str = Field(min_length=1)
    """Shell command that acquires instances."""

    release: str = Field(min_length=1)
    """Shell command that gives one back."""

    timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds after which a command is killed, with all processes that it started."""

    def check(self) -> None:
        """Refuse commands that the shell cannot parse or whose program is missing, without running them.

        Raises:
            ConfigurationError: a command is refused; the message names it and the reason.
        """
        for name, command in (("acquire", self.acquire), ("release", self.release)):
            setting = f"runtime.options.{name} = {quoted(command)}"
            try:
                shlex.split(command)
            except ValueError as error:
                raise ConfigurationError(
                    f"{setting}: {_SHELL} cannot parse it ({one_line(str(error))}); try it in a shell"
                ) from error
            program = re.match(r"\s*([\w./~+-]+)(?=\s|$)", command)
            if program is None or program[1] in _OF_THE_SHELL:
                continue  # begins with a variable or a bracket, so the program is known only once it runs
            if shutil.which(os.path.expanduser(program[1])) is None:
                raise ConfigurationError(
                    f"{setting}: there is no program {program[1]} to run; give its path, or install it"
                )


class AcquireAnswer(Section):
    """The answer that `acquire` writes."""

    instances: tuple[OfferedInstance, ...] = Field(max_length=MOST_OFFERED)


class CommandCapacity(CapacityProvider):
    """A provider that runs the commands one at a time in a thread; instances join `cluster`, if given."""

    def __init__(self, options: CommandOptions, cluster: str = "") -> None:
        super().__init__()
        self._options = options
        self._cluster = cluster
        self._commands = ThreadPoolExecutor(1, thread_name_prefix="capacity")
        self._acquiring: Future[None] | None = None
        self._held: dict[str, Offer] = {}
        self._leaving: dict[str, Offer] = {}  # whose release is due or has failed
        self._file: Path | None = None
        self._acquires: subprocess.Popen[str] | None = None
        self._closing = False

    def keep_in(self, file: Path, taken_over: Callable[[], bool]) -> None:
        """See `CapacityProvider`; instances that joined another cluster are released.

        Raises:
            StorageError: the file is damaged.
        """
        super().keep_in(file, taken_over)
        self._file = file
        cluster, held, leaving = self._kept()
        if cluster == self._cluster:
            self._held, self._leaving = held, leaving
            self.unproven = set(held)
        else:
            self._leaving = leaving | held
        for instance in self._leaving:
            self._commands.submit(self._give_back, instance)

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """See `CapacityProvider`; runs `acquire` for the missing devices, unless it is already running."""
        with self._lock:
            missing = devices - sum(offer.devices for offer in self._held.values())
            if missing <= 0 or self._closing or (self._acquiring is not None and not self._acquiring.done()):
                return
            asked = {"devices": missing, "deadline_s": deadline_s, "cluster": self._cluster}
            self._acquiring = self._commands.submit(self._acquire, asked | {"held": list(self._held)})

    def offered(self) -> Sequence[Offer]:
        """See `CapacityProvider`."""
        with self._lock:
            return list(self._held.values())

    def release(self, instance: str) -> None:
        """See `CapacityProvider`; `release` runs in the background."""
        with self._lock:
            if (offer := self._held.pop(instance, None)) is not None:
                self._leaving[instance] = offer
                self.unproven.discard(instance)
                self._commands.submit(self._give_back, instance)

    def close(self) -> None:
        """Give back all instances, including those from an `acquire` still running, and wait for it."""
        with self._lock:
            self._closing = True
        if self._acquiring is not None:
            # Killed half-way, it might leave an instance that is paid for but unknown to any program.
            wait([self._acquiring], timeout=_CLOSE_S)
            with self._lock:
                if self._acquires is not None:
                    _end(self._acquires)
            wait([self._acquiring])
        for offer in self.offered():
            self.release(offer.instance)
        self._commands.shutdown()

    def _acquire(self, asked: dict[str, Any]) -> None:
        if self._closing or self._taken_over():  # also while it waited for a `release` to end
            return
        try:
            found = AcquireAnswer.model_validate(
                json.loads(self._run("acquire", self._options.acquire, asked))
            )
        except CapacityError as error:
            self._note(str(error))
            return
        except (ValidationError, ValueError) as error:
            self._note(
                f"runtime.options.acquire did not write JSON of the form "
                f'{{"instances": [{{"instance": "NAME"}}]}}; what it acquired may still be paid for: '
                f"{one_line(str(error))}"
            )
            return
        with self._lock:
            for one in found.instances:
                self._held[one.instance] = Offer(one.instance, one.devices, one.usd_per_hour)
                self._leaving.pop(one.instance, None)
        self._keep()

    def _give_back(self, instance: str) -> None:
        self._keep()
        try:
            if self._taken_over() and any(instance in kept for kept in self._kept()[1:]):
                return  # the new driver uses or releases it, but does not know of later ones
            self._run("release", self._options.release, {"instance": instance})
        except (CapacityError, StorageError) as error:
            self._note(f"{instance} may still be rented and paid for: {error}")
            return
        with self._lock:
            self._leaving.pop(instance, None)
        self._keep()

    def _keep(self) -> None:
        """Write the names of the instances that may be rented now."""
        if self._file is None or self._taken_over():
            return
        with self._lock:
            held, leaving = (list(map(vars, offers.values())) for offers in (self._held, self._leaving))
        try:
            if held or leaving:
                write_json(self._file, {"cluster": self._cluster, "held": held, "leaving": leaving})
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            self._note(
                f"{self._file} cannot be written, so a killed run leaves its instances rented: {error}"
            )

    def _kept(self) -> tuple[str, dict[str, Offer], dict[str, Offer]]:
        """Read the run's file: the cluster, and the instances that are held and that leave.

        Raises:
            StorageError: it is damaged.
        """
        if self._file is None or not self._file.exists():
            return self._cluster, {}, {}
        kept = read_json(self._file)
        try:
            held, leaving = (
                {one["instance"]: Offer(**one) for one in kept[name]} for name in ("held", "leaving")
            )
            return kept["cluster"], held, leaving
        except (KeyError, TypeError) as error:
            raise StorageError(
                f"{self._file} is damaged ({error!r}); restore the file, or release the run's instances "
                "yourself and delete it"
            ) from error

    def _run(self, name: str, command: str, given: dict[str, Any]) -> str:
        """Run a command and return its standard output.

        Raises:
            CapacityError: the command failed or took too long.
        """
        try:
            # Not through pipes: a process that the command leaves running would hold them open.
            with (
                TemporaryFile("w+", errors="replace") as said,
                TemporaryFile("w+", errors="replace") as stderr,
            ):
                process = subprocess.Popen(
                    [_SHELL, "-c", command], stdin=subprocess.PIPE, stdout=said, stderr=stderr, text=True,
                    start_new_session=True, env=environment_for_others(),
                )  # fmt: skip
                self._finish(name, process, given)
                said.seek(0)
                stderr.seek(0)
                answer, errors = said.read(), stderr.read()
        except OSError as error:
            raise CapacityError(f"runtime.options.{name} could not be run: {error}") from error
        if process.returncode:
            raise CapacityError(
                f"runtime.options.{name} ended with status {process.returncode}: "
                f"{one_line(errors.strip()) or 'it wrote no error message'}"
            )
        return answer

    def _finish(self, name: str, process: subprocess.Popen[str], given: dict[str, Any]) -> None:
        """Give a command its input and wait until it ends; CapacityError if that takes too long."""
        if name == "acquire":
            with self._lock:
                self._acquires = process
        limit_s = self._options.timeout_s
        try:
            process.communicate(json.dumps(given), timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            _end(process)
            process.communicate()
            raise CapacityError(
                f"runtime.options.{name} did not end in runtime.options.timeout_s={limit_s:g} s and was ended"
            ) from error
        finally:
            if name == "acquire":
                with self._lock:
                    self._acquires = None

    def _note(self, trouble: str) -> None:
        with self._lock:
            self._troubles.append(trouble)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a command and all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
