"""Judges in their own environments, started beside a run and ended with it, however it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from flows.progress import reporter
from flows.server.children import Child
from flows.server.note import refuse_taken_port
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.processes import environment_for_others, python_command

_LOOK_S = 0.2

# A launcher such as `uv` starts the judge as a child, and would leave it behind if killed: so this parent of
# both ends the whole process group. The kernel sends it SIGTERM when the run's process ends. If only `uv`
# were killed, the judge would keep the port and the GPU: so when `uv` ends, its whole group does.
_SUPERVISOR = """
import os, signal, subprocess, sys, time
restarts = 0
def loaded(*_):
    global restarts
    restarts = 3
signal.signal(signal.SIGUSR1, loaded)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
def code_of_judge():
    code = subprocess.call(sys.argv[1:])
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else [])):
        try:
            if pid != os.getpid() and os.getpgid(pid) == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return code
while (code := code_of_judge()) and restarts:
    restarts -= 1
    print(f"the judge ended with code {code}; starting it again, {restarts} restarts are left", flush=True)
    time.sleep(1)
sys.exit(code if code >= 0 else 128 - code)
"""
"""Restarts a judge that dies, or ends itself because it hangs, unless it never loaded."""


@contextmanager
def judges_beside(config: RunConfig) -> Iterator[None]:
    """Start the judges that a run's settings name by `judge`, and end them with the context.

    Raises:
        ConfigurationError: a judge cannot be started, two would serve at one address, or one is not ready
            in runtime.start_timeout_s.
        ServerError: its port is taken.
    """
    from tasks.checks.judges import started_judges

    with ExitStack() as judges:
        for url, command in started_judges(config.reward, config.evaluation):
            with reporter().stage(f"start the judge at {url}"):
                judges.enter_context(judge_at(url, command, config.runtime.start_timeout_s))
        yield


@contextmanager
def judge_at(url: str, command: Sequence[str], limit_s: float) -> Iterator[Child]:
    """Start a judge, wait until it has loaded, and end it with the context.

    Args:
        limit_s: seconds until it must have loaded.

    Raises:
        ConfigurationError: it ended, or is not ready in time.
        ServerError: its port is taken.
    """
    place = urlsplit(url)
    advice = "stop the process that listens there, or choose another reward.options.url or --port"
    refuse_taken_port(place.port or 0, advice, place.hostname or "")
    log = Home.from_environment().ensure().logs / f"judge-{place.hostname}-{place.port}.log"
    supervised = python_command("-c", _SUPERVISOR, *command)
    judge = Child("judge", supervised, environment_for_others(), log, signal.SIGTERM, patience_s=2.0)
    try:
        until_s = time.monotonic() + limit_s
        while not _has_loaded(url):
            if (ended := judge.ended) is not None:
                raise ConfigurationError(f"the judge at {url} does not start: {ended}")
            if time.monotonic() > until_s:
                raise ConfigurationError(
                    f"the judge at {url} has not loaded in time (runtime.start_timeout_s, or --limit); its "
                    "first start makes an environment and downloads weights: do it once by `spotlight "
                    f"judge`. Its log is {log}"
                )
            time.sleep(_LOOK_S)
        os.kill(judge.process.pid, signal.SIGUSR1)
        try:
            yield judge
        finally:
            if (code := judge.process.poll()) is not None:
                reporter().note(f"warning: the judge at {url} ended with code {code}; see {log}")
    finally:
        judge.stop()


def _has_loaded(url: str) -> bool:
    """Return True if a server answers, unless it says that it is still loading."""
    import httpx

    try:
        said = httpx.get(url, timeout=5.0, trust_env=False).json()
    except httpx.HTTPError:
        return False
    except ValueError:
        return True
    return not isinstance(said, dict) or said.get("loaded", True)
