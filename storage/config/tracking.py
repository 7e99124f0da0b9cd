"""Settings of the readers of a run's figures."""

from __future__ import annotations

from pydantic import field_validator

from storage.config.section import Section
from storage.errors import quoted
from storage.text import web_address

TRACKING_VARIABLE, READERS_VARIABLE = "SPOTLIGHT_TRACKING__URI", "SPOTLIGHT_TRACKING__TO"
"""Environment variables of `tracking.uri` and `tracking.to`, which also apply to resumed runs."""


class TrackingConfig(Section):
    """Where a run's figures, images and report are copied, besides the record."""

    to: tuple[str, ...] = ("mlflow",)
    """Readers of the record: `mlflow`, `wandb`, `tensorboard`; `webhook` and `mail` notify people; your
    own by its entry point's name or as `package.module:Name` (docs/reference/record.md). An empty list
    copies nothing."""

    uri: str = ""
    """Address of your own MLflow server, such as http://HOST:5000; empty keeps the copy in the home
    folder. A login comes from MLflow's own variables, such as MLFLOW_TRACKING_USERNAME
    (docs/reference/record.md)."""

    @field_validator("to")
    @classmethod
    def _is_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"tracking.to is {list(value)}; name each reader once")
        return value

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value:
            return value
        parts = web_address(value)
        if parts is None or parts.query or parts.fragment:
            raise ValueError(
                f"tracking.uri is {quoted(value)}; give the address of an MLflow server, such as "
                "http://HOST:5000, or leave it empty"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "tracking.uri holds a login, and settings are stored with the run; leave it out, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return value.rstrip("/")
