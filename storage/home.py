"""Where everything that Spotlight keeps lies on disk: one folder, the home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "SPOTLIGHT_HOME"
"""Environment variable that names the home folder."""

UP_TOKEN_VARIABLE = "SPOTLIGHT_UP_TOKEN"
"""Environment variable by which the processes of a `spotlight up` know each other."""

_PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    """The folder that holds the database, MLflow's store, checkpoints, logs and Prefect's state.

    Attributes:
        path: the folder, absolute; it need not exist until `ensure` is called.
    """

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """The home that `SPOTLIGHT_HOME` names, or `.spotlight` in the project's root.

        Args:
            environ: the environment to read; the process's own by default.
        """
        named = (os.environ if environ is None else environ).get(HOME_VARIABLE, "").strip()
        path = Path(named).expanduser() if named else _PROJECT_ROOT / ".spotlight"
        return cls(path.absolute())

    @property
    def database(self) -> Path:
        """The DuckDB file."""
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
    def logs(self) -> Path:
        """Folder of log files."""
        return self.path / "logs"

    @property
    def prefect(self) -> Path:
        """Folder of the Prefect server's own state."""
        return self.path / "prefect"

    def checkpoints(self, run_id: str) -> Path:
        """Folder of one run's checkpoints."""
        return self.path / "checkpoints" / run_id

    def history(self, run_id: str) -> Path:
        """Folder of one run's history, where it keeps one."""
        return self.path / "history" / run_id

    def ensure(self) -> Home:
        """Create the folders that are missing.

        Returns:
            This home, so that the call chains.
        """
        for folder in (self.path, self.artifacts, self.logs, self.prefect, self.path / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)
        return self
