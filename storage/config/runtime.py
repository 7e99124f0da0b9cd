"""The settings of the processes: how many, where, and what happens when one is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from storage.config.section import LONGEST_S, OptionValues, Section, integer_or
from storage.errors import quoted

WORKER_IN_URL = "{worker}"
"""Placeholder for a worker's name in the address of `runtime.notices`."""


_STARTED_HERE = ("ray", "local")
"""Clusters of this machine alone."""

_TRAINER_LIMIT_S = 7200.0
_LEASES_OF_A_TRAINER = 24
"""Least time of a trainer's call, and its time in leases."""

AUTO = "auto"
"""A number of workers: one for every device that the cluster currently has."""

_AUTO = {AUTO: " for every device that the cluster has"}

FIXED_CAPACITY = "static"
"""A provider of spot devices whose number the settings fix."""

OF_THE_CLUSTER = (FIXED_CAPACITY, "trace", "lending")
"""Providers whose spot devices are in the cluster when the run joins it."""


class RuntimeConfig(Section):
    """Processes and where they run."""

    cluster: str = "ray"
    """How processes start: `ray` or `local` (without Ray) on this machine, or the running Ray cluster
    at an address (HOST:PORT, ray://HOST:PORT, or `auto`)."""

    reserved_workers: Annotated[int | Literal["auto"], integer_or(1, 64, _AUTO)] = 1
    """Reserved devices. The first ones train (see `trainer_workers`); all of them generate. `auto` takes
    every GPU that Ray sees on instances without the label `ray.io/market-type=spot`; in a cluster without
    GPUs, each instance is a device."""

    trainer_workers: int = Field(default=1, ge=1, le=64)
    """Reserved devices that train together. They divide weights, gradients and the optimiser, and bits depend
    on their number, unless there are `algorithm.gradient_shards`. With shards and LoRA, those above
    `reserved_workers` are spot devices, which train while none drafts."""

    spot_workers: Annotated[int | Literal["auto"], integer_or(0, 1024, _AUTO)] = 2
    """Spot devices; they generate (but see `trainer_workers`). `auto` takes those on instances with that
    label, as they come and go; only a number asks an autoscaler for more."""

    capacity: str = Field(default=FIXED_CAPACITY, min_length=1)
    """Where spot devices come from. `static`: as many as `spot_workers`. Otherwise that is the maximum,
    and measured times and prices decide before each iteration: `trace` replays a trace, `command` runs
    your two commands, `ray` asks the cluster's autoscaler, `lending` a serving fleet; or a plug-in
    (docs/how-to/spot-instances.md)."""

    options: OptionValues = Field(default={})
    """Options declared by `capacity` (docs/how-to/spot-instances.md)."""

    standby_workers: int = Field(default=0, ge=0, le=64)
    """Processes that wait with a model in the host's memory to replace a lost worker. Only for workers
    without GPUs."""

    scorer_workers: int = Field(default=2, ge=1, le=256)
    """Processes that score images."""

    scorer_gpu: float = Field(default=0.0, ge=0, le=1)
    """Share of a GPU for each scorer process, if judges are large models (`geneval`, `deepseek-ocr`,
    `clip-score`, `pick-score`); 0: the CPU."""

    start_timeout_s: float = Field(default=300.0, ge=1, le=LONGEST_S)
    """Seconds that all workers together may take to start."""

    commit_steps: int = Field(default=0, ge=0, le=200)
    """Denoising steps after which a device's unfinished samples are saved with the driver; 0: every 4, or the
    multiple of 4 that takes a second. A number above a sample's steps saves finished samples only. Drafts are
    saved every two steps at most."""

    lease_s: float = Field(default=300.0, ge=1, le=LONGEST_S)
    """Seconds without a sign of life after which a device is killed and others do its samples: must
    exceed loading the weights, and the work between two saves (`commit_steps`). A trainer's call may take 24
    times as long, and at least two hours; then the run ends, and can be resumed."""

    notices: str = "none"
    """Source of preemption notices for spot workers: `none`, `aws`, `gcp`, `azure`, `alibaba`,
    `kubernetes`, or a plug-in, `package.module:Name`.
    `gcp@http://HOST:PORT` asks at that address instead; `{worker}` in its path becomes the worker's name."""

    trainers_leave: bool = False
    """Let trainers leave a rollout to train on judged prompt groups, once the others can finish it within
    the training time. Not if devices share samples, nor with `algorithm.advantage_std = "batch"`."""

    history: bool = False
    """Keep every lease, commit, delivery, loss and denoising step in the run's `history/`, where
    `spotlight chaos` checks its promises. Workers then stop after each step."""

    @field_validator("cluster")
    @classmethod
    def _is_a_cluster(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if value not in (*_STARTED_HERE, "auto") and not (host and colon and port.isdigit()):
            raise ValueError(
                f"runtime.cluster is {quoted(value)}, which is not the address of a Ray cluster; give "
                "HOST:PORT, ray://HOST:PORT or auto, or ray or local for processes of this machine"
            )
        return value

    @property
    def notice_provider(self) -> str:
        """The provider that announces preemptions, or `none`."""
        return self.notices.partition("@")[0]

    @property
    def notice_url(self) -> str:
        """Address of the provider's metadata service; empty for its default."""
        return self.notices.partition("@")[2]

    @property
    def trainer_limit_s(self) -> float:
        """Seconds after which a trainer's call counts as hung; it gives no sign of life before it ends."""
        return max(_TRAINER_LIMIT_S, _LEASES_OF_A_TRAINER * self.lease_s)

    @property
    def ray_address(self) -> str:
        """Address of the running Ray cluster to join; empty where the processes are started here."""
        return "" if self.cluster in _STARTED_HERE else self.cluster

    @property
    def driver_is_on_cluster(self) -> bool:
        """True if the driver is on a host of the cluster that it joins; not with a `ray://` address."""
        return bool(self.ray_address) and not self.ray_address.startswith("ray://")

    @property
    def counts_devices(self) -> bool:
        """True if the cluster determines the number of workers (`auto`), so more may join later."""
        return AUTO in (self.reserved_workers, self.spot_workers)

    @property
    def least_reserved(self) -> int:
        """A run's minimum of reserved workers; with `auto`, those that train."""
        return self.trainer_workers if self.reserved_workers == AUTO else self.reserved_workers

    @property
    def reserved_trainers(self) -> int:
        """Reserved workers that train."""
        return min(self.trainer_workers, self.least_reserved)

    @property
    def spot_trainers(self) -> int:
        """Most spot workers that train beside the reserved ones."""
        return self.trainer_workers - self.reserved_trainers

    @property
    def least_spot(self) -> int:
        """Spot workers that the settings name: none with `auto`, and the most where `capacity` decides."""
        return 0 if self.spot_workers == AUTO else self.spot_workers

    @property
    def least_workers(self) -> int:
        """A run's minimum of workers."""
        return self.least_reserved + self.least_spot

    @property
    def devices_in_words(self) -> str:
        """A run's number of devices, for messages."""
        counts = {"reserved": self.reserved_workers, "spot": self.spot_workers}
        words = [f"{'all' if count == AUTO else count} {market}" for market, count in counts.items()]
        return f"{' and '.join(words)} devices" + (" of the cluster" if self.counts_devices else "")

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.spot_workers != AUTO and self.spot_trainers > self.spot_workers:
            yield (
                f"runtime.trainer_workers is {self.trainer_workers}, above runtime.reserved_workers="
                f"{self.reserved_workers} and runtime.spot_workers={self.spot_workers} together; lower it, "
                "or raise these"
            )
        if self.cluster == "local" and self.scorer_gpu:
            yield (
                f"runtime.scorer_gpu is {self.scorer_gpu:g}, but runtime.cluster=local divides no GPUs; set "
                "it to 0, or set runtime.cluster=ray"
            )
        all_train = bool(self.spot_trainers) or self.least_workers == self.trainer_workers
        if self.standby_workers and not self.counts_devices and all_train:
            yield (
                f"runtime.standby_workers is {self.standby_workers}, but every worker trains, or may, and "
                "standbys never replace a trainer; set it to 0, raise spot_workers, or lower "
                "trainer_workers"
            )
