"""Servers that a team runs itself: Postgres and Prefect with it, as `deploy/compose.yaml` starts them; S3."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from flows.server.prefect_server import is_healthy
from tests.running_up import ROOT, free_port, wait_until

_POSTGRES_USER = "postgres"
"""Who starts it where root may not."""

_LIMIT_S = 200.0
_COMMAND_LIMIT_S = 500.0
"""One of Prefect's commands may do a whole run."""


def compose_service(name: str) -> dict[str, Any]:
    """A service of `deploy/compose.yaml`."""
    return yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"][name]


def postgres_programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where they are not, or may not be started."""
    if os.geteuid() == 0 and _POSTGRES_USER not in [one.pw_name for one in pwd.getpwall()]:
        return None
    on_path = shutil.which("initdb")
    # Debian's are not on the path.
    found = [Path(on_path).resolve()] if on_path else Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return next((one.parent for one in found), None)


@dataclass(frozen=True)
class Postgres:
    """A Postgres server that listens on 127.0.0.1, with a database that has its user's name."""

    programs: Path
    port: int
    user: str
    password: str = field(repr=False)

    def ask(self, program: str, *arguments: str) -> str:
        """What one of its client programs prints."""
        server = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": self.user}
        return subprocess.run(
            [self.programs / program, *arguments],
            env=os.environ | server | {"PGPASSWORD": self.password},
            capture_output=True, text=True, timeout=_LIMIT_S, check=True,
        ).stdout  # fmt: skip

    def answers(self) -> bool:
        """Whether it can be asked by now."""
        try:
            self.ask("pg_isready")
        except subprocess.CalledProcessError:
            return False
        return True

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self.ask("psql", "-X", "-d", self.user, "-tA", "-c", f"select count(*) from {table}"))


@contextmanager
def running_postgres(programs: Path) -> Iterator[Postgres]:
    """A server of these `postgres_programs` in a folder of its own, of which nothing is left."""
    # It refuses to run as root, and its own user cannot look into the folders that pytest makes.
    account: dict[str, Any] = {"user": _POSTGRES_USER, "group": _POSTGRES_USER, "extra_groups": []}
    account = account if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = compose_service("postgres")["environment"]["POSTGRES_USER"]
    own = Postgres(programs, free_port(), user, secrets.token_hex())
    (folder / "password").write_text(own.password)
    if account:
        for path in (folder, folder / "password"):
            shutil.chown(path, _POSTGRES_USER, _POSTGRES_USER)
    data = folder / "data"
    initdb = [programs / "initdb", "-D", data, "-U", own.user, "-A", "scram-sha-256", "--no-sync",
              "-E", "UTF8", "--no-locale", f"--pwfile={folder / 'password'}"]  # fmt: skip
    server = [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(own.port), "-k", folder, "-F"]
    try:
        made = subprocess.run(initdb, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, **account)
        assert made.returncode == 0, made.stdout + made.stderr
        with _running(server, folder / "postgres.log", folder, **account):
            wait_until("Postgres answers", own.answers)
            own.ask("createdb", own.user)
            yield own
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class OwnPrefect:
    """A Prefect server at `api`, its client with the password, and the environment of who uses it."""

    api: str
    client: httpx.Client
    environment: dict[str, str]

    def run(self, *command: str) -> None:
        """Run a command to its end in the project's folder; it must succeed."""
        process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=_COMMAND_LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a flow run of a worker, too
            raise
        assert process.returncode == 0, said


@contextmanager
def running_prefect(home: Path, postgres: Postgres | None) -> Iterator[OwnPrefect]:
    """Compose's service `prefect` on this machine.

    Args:
        home: `SPOTLIGHT_HOME` of who uses it; it keeps its own files there, too.
        postgres: its database; None for Prefect's own file.
    """
    service, port, secret = compose_service("prefect"), free_port(), f"spotlight:{secrets.token_hex()}"
    values = service["environment"] | {"PREFECT_SERVER_API_AUTH_STRING": secret}
    if postgres is None:
        values = {name: value for name, value in values.items() if "_DATABASE_" not in name}
    else:
        values |= {
            "PREFECT_SERVER_DATABASE_HOST": "127.0.0.1",
            "PREFECT_SERVER_DATABASE_PORT": str(postgres.port),
            "PREFECT_SERVER_DATABASE_PASSWORD": postgres.password,
        }
    where = {"0.0.0.0": "127.0.0.1", "4200": str(port)}
    command = [sys.executable, "-m", *(where.get(word, word) for word in service["command"])]
    api = f"http://127.0.0.1:{port}/api"
    own = {"PREFECT_HOME": str(home / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    user, _, password = secret.partition(":")
    with (
        httpx.Client(auth=(user, password), timeout=60) as client,
        _running(command, home / "prefect.log", ROOT, env=os.environ | values | own),
    ):
        wait_until("Prefect answers", lambda: is_healthy(api))
        settings = {
            "PREFECT_API_URL": api,
            "PREFECT_API_AUTH_STRING": secret,
            "SPOTLIGHT_HOME": str(home),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": str(ROOT),
            "SPOTLIGHT_ROOT": str(ROOT),  # in the image it is of the image
        }
        yield OwnPrefect(api, client, os.environ | own | settings)


@contextmanager
def running_s3(bucket: str) -> Iterator[dict[str, str]]:
    """A server that speaks S3's protocol, with an empty bucket; the environment that a client needs."""
    from moto.server import ThreadedMotoServer  # takes long to import

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        # What an earlier server of this process had is still there.
        httpx.post(f"{address}/moto-api/reset").raise_for_status()
        httpx.put(f"{address}/{bucket}").raise_for_status()
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.stop()


@contextmanager
def _running(command: list[Any], log: Path, folder: Path, **options: Any) -> Iterator[None]:
    """A process that lives as long as the context; what it says is shown where the context fails."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options
        )
    try:
        yield
    except BaseException:
        print(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        process.send_signal(signal.SIGINT)  # Postgres then waits for no client
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
