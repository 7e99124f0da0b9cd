"""The providers of preemption notices by name: the watcher of each, and the poll interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_runtime.spot.notices.alibaba import AlibabaNotices
from gpu_runtime.spot.notices.aws import AwsNotices
from gpu_runtime.spot.notices.azure import AzureNotices
from gpu_runtime.spot.notices.gcp import GcpNotices
from gpu_runtime.spot.notices.kubernetes import KubernetesNotices
from gpu_runtime.spot.notices.notice import NoticeWatcher
from storage.config.plugins import Registry
from storage.errors import ConfigurationError


@dataclass(frozen=True)
class NoticePlugin:
    """A provider's notices, as named by `runtime.notices`.

    Attributes:
        watcher: creates its watcher.
        grace_s: most seconds from a notice to the loss.
        poll_interval_s: seconds between polls. They shorten the grace, so they are few if the grace is short.
        max_backoff_s: longest wait after failed polls: about a quarter of the grace period, so that a
            service that recovers still warns in time.
        settings: names of the arguments of `watcher`.
    """

    watcher: Callable[..., NoticeWatcher]
    grace_s: float
    poll_interval_s: float
    max_backoff_s: float
    settings: frozenset[str]

    @property
    def asks_url(self) -> bool:
        """True if its watcher asks a metadata service at an address."""
        return "base_url" in self.settings


_HTTP = frozenset({"base_url", "timeout_s"})
NOTICES = Registry(
    "runtime.notices",
    NoticePlugin,
    "spotlight.notices",
    {
        "aws": NoticePlugin(AwsNotices, 120.0, 5.0, 30.0, _HTTP),
        "gcp": NoticePlugin(GcpNotices, 30.0, 1.0, 8.0, _HTTP | {"grace_s"}),
        "azure": NoticePlugin(AzureNotices, 30.0, 1.0, 8.0, _HTTP | {"vm_name"}),
        "alibaba": NoticePlugin(AlibabaNotices, 300.0, 5.0, 60.0, _HTTP),
        "kubernetes": NoticePlugin(KubernetesNotices, 30.0, 0.2, 1.0, frozenset({"grace_s", "clock"})),
    },
)


def watcher_for(name: str, **settings: Any) -> NoticeWatcher:
    """Return a watcher of a provider's notices.

    Args:
        name: name of the provider.
        settings: arguments of the provider's watcher, such as `base_url`; its defaults otherwise.

    Raises:
        ConfigurationError: the provider or a setting is unknown, or a setting is invalid.
    """
    provider = NOTICES.find(name)
    unknown = sorted(set(settings) - provider.settings)
    if unknown:
        raise ConfigurationError(
            f"the watcher of {name} takes no {', '.join(unknown)}; it takes "
            + ", ".join(sorted(provider.settings))
        )
    return provider.watcher(**settings)
