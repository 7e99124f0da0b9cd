"""The home: one folder for everything that Spotlight keeps, which only its owner can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from storage.errors import ConfigurationError, StorageError, quoted

HOME_VARIABLE = "SPOTLIGHT_HOME"
"""The environment variable that names the home folder."""

UP_VARIABLE = "SPOTLIGHT_UP"
"""The environment variable with the home of the `spotlight up` that a process belongs to."""

FOLDER_VARIABLE = "SPOTLIGHT_FOLDER"
"""The environment variable with the folder from which a deployed run takes relative paths."""

DASHBOARD_URL_VARIABLE = "SPOTLIGHT_DASHBOARD_URL"
"""The environment variable with the dashboard's address, for links; `spotlight up` sets it for its runs."""

PURPOSE_VARIABLE = "SPOTLIGHT_PURPOSE"
"""The environment variable that sets `storage.environment.PURPOSE` for the runs of a process."""

PRIVATE_UMASK = 0o077
"""The umask that gives new files mode 0600 and new folders 0700."""

_ENTRIES = (
    "spotlight.duckdb*", "mlflow.db*", "artifacts", "runs", "evaluations", "reproductions", "logs", "prefect",
    "up.*", "tensorboard", "wandb",
)  # fmt: skip

_PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    """The folder that holds everything; its absolute path need not exist until `ensure` is called."""

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """Return the home that `SPOTLIGHT_HOME` names, or `.spotlight` in the project's root.

        A missing folder passes: a command that only reads finds nothing in it.

        Raises:
            ConfigurationError: the path cannot be a folder, or is one that this user cannot read.
        """
        named = (os.environ if environ is None else environ).get(HOME_VARIABLE, "").strip()
        try:
            path = (Path(named).expanduser() if named else _PROJECT_ROOT / ".spotlight").absolute()
        except (OSError, RuntimeError) as error:  # no current folder, no such user after "~"
            raise _refused(named, str(error)) from error
        _refuse_no_folder(path)
        return cls(path)

    @property
    def database(self) -> Path:
        """The catalogue: a DuckDB file with views over all runs."""
        return self.path / "spotlight.duckdb"

    @property
    def mlflow_uri(self) -> str:
        """MLflow's tracking address (a sqlite file)."""
        return f"sqlite:///{self.path / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """Folder of MLflow's artifacts."""
        return self.path / "artifacts"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files, one folder per run."""
        return self.path / "tensorboard"

    @property
    def logs(self) -> Path:
        """Folder of log files."""
        return self.path / "logs"

    @property
    def prefect(self) -> Path:
        """Folder of the Prefect server's own state."""
        return self.path / "prefect"

    @property
    def runs(self) -> Path:
        """Folder of the runs' folders."""
        return self.path / "runs"

    def run(self, run_id: str) -> Path:
        """Return the folder of one run's whole record. It is inside the home, whatever the run's name."""
        # A foreign folder's name need not be UTF-8.
        name = quote(run_id, safe="", errors="surrogateescape")
        return self.runs / (f"%2E{name[1:]}" if name.startswith(".") else name)

    def run_ids(self) -> list[str]:
        """Return the identifiers of the runs that have a folder, in alphabetical order.

        Folders with a name that no run gets, such as `my notes`, are foreign and left out.
        """
        if not self.runs.is_dir():
            return []
        names = [entry.name for entry in os.scandir(self.runs) if entry.is_dir()]
        named = {name: unquote(name) for name in names if not name.startswith(("_", "."))}
        return sorted(run_id for name, run_id in named.items() if self.run(run_id).name == name)

    @property
    def evaluations(self) -> Path:
        """Folder of the evaluations by `spotlight evaluate`, one folder each."""
        return self.path / "evaluations"

    @property
    def reproductions(self) -> Path:
        """Folder of the reproductions, one file each."""
        return self.path / "reproductions"

    def refuse_earlier_layout(self) -> None:
        """Refuse (StorageError) a home of an unreleased earlier version: its runs are not in folders."""
        if self.database.exists() and not self.runs.is_dir():
            raise StorageError(
                f"the home folder {quoted(str(self.path))} was made by an earlier version, which this one "
                f"cannot read; set {HOME_VARIABLE} to a new folder, or use the commit that made it"
            )

    def history(self, run_id: str) -> Path:
        """Return the folder of one run's history, if it keeps one."""
        return self.run(run_id) / "history"

    def output(self, run_id: str) -> Path:
        """Return the folder of the output of one run's local workers and scorers."""
        return self.run(run_id) / "output"

    def ensure(self) -> Home:
        """Create missing folders, close the whole home to other users of the machine, and return this home.

        From then on this process, and those that it starts (Prefect, MLflow, Ray, DuckDB), make new files
        private to their owner, whatever the umask was. A home that others can enter, such as one made by an
        earlier version, is closed.

        Raises:
            ConfigurationError: a folder cannot be made, written to, or closed to others.
            StorageError: the home has an earlier layout.
        """
        self.refuse_earlier_layout()
        os.umask(PRIVATE_UMASK)
        for folder in (self.path, self.artifacts, self.logs, self.prefect, self.runs):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:  # ValueError: a NUL character
                problem = getattr(error, "strerror", None) or str(error)
                raise _refused(self.path, f"{quoted(str(folder))} cannot be made: {problem}") from error
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _refused(self.path, f"{quoted(str(folder))} cannot be written to")
        home = self.path.resolve()
        try:
            if is_open_to_others(home):
                # The folder first: nothing below it can be reached then, even if this is interrupted. A
                # person's own home directory stays unchanged: only our entries in it are closed.
                if not Path.home().is_relative_to(home):
                    close_to_others(home)
                for entry in [entry for pattern in _ENTRIES for entry in home.glob(pattern)]:
                    below = entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else ()
                    for path in (entry, *below):
                        close_to_others(path)
        except OSError as error:
            raise _refused(self.path, f"it cannot be closed to other users: {error}") from error
        return self


def dashboard_page(run_id: str) -> str:
    """Return the address of a run's page in the dashboard; empty if no dashboard is known to run."""
    address = os.environ.get(DASHBOARD_URL_VARIABLE, "").rstrip("/")
    return f"{address}/?run={quote(run_id, safe='')}" if address else ""


def is_open_to_others(path: Path) -> bool:
    """Return True if other users of the machine have any right to a file or folder of this user.

    False if it is missing, another user's, or a folder meant for all (sticky, such as `/tmp`).
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def close_to_others(path: Path) -> None:
    """Take all rights to a file or folder from all users but its owner, if this user owns it."""
    if is_open_to_others(path):
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


def _refuse_no_folder(path: Path) -> None:
    """Refuse a path that is not a folder and cannot become one, or a folder that cannot be read.

    Also refuse characters with which a library opens a different file: DuckDB reads text after `?` as
    parameters, and a backslash as a slash; SQLAlchemy reads `%20` as a space.
    """
    for sign in "?%\\":
        if sign in str(path):
            raise _refused(path, f"its path has {sign!r}, and DuckDB or MLflow would open another file")
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            if place.is_symlink():
                raise _refused(path, f"{quoted(str(place))} is a link to nothing") from error
            continue  # the nearest existing one decides
        except (OSError, ValueError) as error:
            raise _refused(path, getattr(error, "strerror", None) or str(error)) from error
        if not stat.S_ISDIR(mode):
            raise _refused(path, f"{quoted(str(place))} is a file, not a folder")
        if place == path and not os.access(path, os.R_OK | os.X_OK):
            raise _refused(path, "this user cannot read it")
        return


def _refused(path: Path | str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the home folder {quoted(str(path))} cannot be used: {problem}; set {HOME_VARIABLE} to a folder "
        "that this user can write"
    )
