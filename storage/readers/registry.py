"""The readers by name."""

from __future__ import annotations

from importlib.util import find_spec

from storage.config.plugins import Registry
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError
from storage.readers.mlflow_reader import MlflowReader, refuse_silent_server
from storage.readers.protocol import ReaderPlugin
from storage.readers.telling_readers import MailReader, WebhookReader, check_mail, check_webhook
from storage.readers.tensorboard_reader import TensorboardReader
from storage.readers.wandb_reader import WandbReader, refuse_without_login


def _check_extra(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigurationError(
            f"tracking.to names {package}, which is not installed; install it with "
            f"`.venv/bin/pip install -c constraints.txt -e '.[{package}]'`"
        )


def _check_wandb(tracking: TrackingConfig) -> None:
    _check_extra("wandb")
    refuse_without_login()


READERS = Registry(
    "tracking.to",
    ReaderPlugin,
    "spotlight.readers",
    {
        "mlflow": ReaderPlugin(
            lambda home, tracking: MlflowReader(
                tracking.uri or home.mlflow_uri, None if tracking.uri else home.artifacts
            ),
            lambda tracking: refuse_silent_server(tracking.uri),
        ),
        "tensorboard": ReaderPlugin(
            lambda home, tracking: TensorboardReader(home.tensorboard),
            lambda tracking: _check_extra("tensorboard"),
        ),
        "wandb": ReaderPlugin(lambda home, tracking: WandbReader(home.path), _check_wandb),
        "webhook": ReaderPlugin(lambda home, tracking: WebhookReader(home), lambda tracking: check_webhook()),
        "mail": ReaderPlugin(lambda home, tracking: MailReader(home), lambda tracking: check_mail()),
    },
)


def check_readers(tracking: TrackingConfig) -> None:
    """Refuse readers that are unknown, not installed, or without an answering server."""
    for name in tracking.to:
        READERS.find(name).check(tracking)
