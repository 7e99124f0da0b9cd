"""The providers of preemption notices by name."""

from __future__ import annotations

from gpu_runtime.spot.notices.alibaba import AlibabaNotices
from gpu_runtime.spot.notices.aws import AwsNotices
from gpu_runtime.spot.notices.azure import AzureNotices
from gpu_runtime.spot.notices.gcp import GcpNotices
from gpu_runtime.spot.notices.kubernetes import KubernetesNotices
from gpu_runtime.spot.notices.watch import NoticePlugin
from storage.config.plugins import Registry

NOTICES = Registry(
    "runtime.notices",
    NoticePlugin,
    "spotlight.notices",
    {
        "aws": NoticePlugin(AwsNotices, 5.0, 30.0, asks_url=True),
        "gcp": NoticePlugin(GcpNotices, 1.0, 8.0, asks_url=True),
        "azure": NoticePlugin(AzureNotices, 1.0, 8.0, asks_url=True),
        "alibaba": NoticePlugin(AlibabaNotices, 5.0, 60.0, asks_url=True),
        "kubernetes": NoticePlugin(KubernetesNotices, 0.2, 1.0),
    },
)
