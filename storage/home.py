"""Where everything that Spotlight keeps lies: one folder, the home, which its owner alone can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from storage.errors import ConfigurationError, StorageError, quoted

HOME_VARIABLE = "SPOTLIGHT_HOME"
"""Environment variable that names the home folder."""

UP_TOKEN_VARIABLE = "SPOTLIGHT_UP_TOKEN"
"""Environment variable by which the processes of a `spotlight up` know each other."""

DASHBOARD_URL_VARIABLE = "SPOTLIGHT_DASHBOARD_URL"
"""Environment variable with the dashboard's address, for links to it; `spotlight up` sets it for its runs."""

PURPOSE_VARIABLE = "SPOTLIGHT_PURPOSE"
"""Environment variable that gives the runs of a process `storage.environment.PURPOSE`."""

PRIVATE_UMASK = 0o077
"""New files 0600, new folders 0700."""

_ENTRIES = (
    "spotlight.duckdb*", "mlflow.db*", "artifacts", "runs", "evaluations", "reproductions", "logs", "prefect",
    "up.*", "tensorboard", "wandb",
)  # fmt: skip
"""What is in a home."""

_PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    """The folder that holds the runs, their catalogue, MLflow's store, checkpoints, logs and Prefect's state.

    Attributes:
        path: the folder, absolute; it need not exist until `ensure` is called.
    """

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """The home that `SPOTLIGHT_HOME` names, or `.spotlight` in the project's root.

        Args:
            environ: the environment to read; the process's own by default.

        Raises:
            ConfigurationError: the path cannot be a folder, or is one that this user cannot read. A folder
                that is missing passes: a command that only reads finds nothing in it.
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
        """Folder of TensorBoard's event files, a folder a run."""
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
        """Folder of one run: all that is recorded of it. Inside the home, whatever the run is called."""
        name = quote(run_id, safe="")
        return self.runs / (f"%2E{name[1:]}" if name.startswith(".") else name)

    def run_ids(self) -> list[str]:
        """Identifiers of the runs that have a folder, in alphabetical order."""
        if not self.runs.is_dir():
            return []
        names = [entry.name for entry in os.scandir(self.runs) if entry.is_dir()]
        return sorted(unquote(name) for name in names if not name.startswith(("_", ".")))

    @property
    def evaluations(self) -> Path:
        """Folder of the evaluations by `spotlight evaluate`, a folder each."""
        return self.path / "evaluations"

    @property
    def reproductions(self) -> Path:
        """Folder of the reproductions, a file each."""
        return self.path / "reproductions"

    def refuse_earlier_layout(self) -> None:
        """Refuse a home that an unreleased earlier version made: its runs are not in folders.

        Raises:
            StorageError: it is one.
        """
        if self.database.exists() and not self.runs.is_dir():
            raise StorageError(
                f"the home folder {quoted(str(self.path))} was made by an earlier version, which this one "
                f"cannot read; set {HOME_VARIABLE} to a new folder, or use the commit that made it"
            )

    def history(self, run_id: str) -> Path:
        """Folder of one run's history, where it keeps one."""
        return self.run(run_id) / "history"

    def ensure(self) -> Home:
        """Create the folders that are missing, and keep all of the home from other users of the machine.

        From then on this process, and those that it starts (Prefect, MLflow, Ray, DuckDB), give new files to
        their owner alone, whatever the umask was. A home that others can enter, such as one made by an
        earlier version, is closed.

        Returns:
            This home, so that the call chains.

        Raises:
            ConfigurationError: one cannot be made, cannot be written to, or cannot be closed to others.
            StorageError: the home is of an earlier layout.
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
        try:
            _close_to_others(self.path.resolve())
        except OSError as error:
            raise _refused(self.path, f"it cannot be closed to other users: {error}") from error
        return self


def dashboard_page(run_id: str, environ: Mapping[str, str] | None = None) -> str:
    """Address of a run's page in the dashboard; empty where no dashboard is known to run."""
    address = (os.environ if environ is None else environ).get(DASHBOARD_URL_VARIABLE, "").rstrip("/")
    return f"{address}/?run={quote(run_id, safe='')}" if address else ""


def is_open_to_others(path: Path) -> bool:
    """Return True where other users of the machine have any right to a file or folder of this user.

    False where it is missing, another user's, or a folder that is meant for all (sticky, such as `/tmp`).
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def close_to_others(path: Path) -> None:
    """Take all rights to a file or folder from all users but its owner, where that is this user."""
    if is_open_to_others(path):
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


def _close_to_others(home: Path) -> None:
    if not is_open_to_others(home):
        return
    # The folder first: nothing below it can be reached then, also where this is interrupted. A person's own
    # home directory stays as it is: only our entries in it are closed.
    if not Path.home().is_relative_to(home):
        close_to_others(home)
    for entry in [entry for pattern in _ENTRIES for entry in home.glob(pattern)]:
        below = entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else ()
        for path in (entry, *below):
            close_to_others(path)


def _refuse_no_folder(path: Path) -> None:
    """Refuse a path that is no folder and cannot become one, or a folder that cannot be read.

    Nor may it have a sign by which a library that is given the path of a file finds another one: DuckDB takes
    what follows `?` for parameters, and a backslash for a slash; SQLAlchemy takes `%20` for a space.
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
            continue  # the nearest that is there decides
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
