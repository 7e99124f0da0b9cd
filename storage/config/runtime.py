"""The settings of the processes: how many, where, and what happens when one is lost."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from storage.config.section import LONGEST_S, Section

WORKER_IN_URL = "{worker}"
"""What stands for a worker's name in `runtime.notice_url`."""


class RuntimeConfig(Section):
    """Processes and where they run."""

    cluster: Literal["ray", "local"] = "ray"
    """What starts the processes. `local` forks them on this machine without Ray, which takes seconds less."""

    ray_address: str = ""
    """Address of a running Ray cluster; empty starts a local one."""

    reserved_workers: int = Field(default=1, ge=1, le=64)
    """Reserved devices. The first ones train (see `trainer_workers`); all of them generate."""

    trainer_workers: int = Field(default=1, ge=1, le=64)
    """Reserved devices that train together: weights, gradients and the optimiser are divided over them. The
    bits of a run depend on it."""

    spot_workers: int = Field(default=2, ge=0, le=1024)
    """Spot devices; they only generate."""

    standby_workers: int = Field(default=0, ge=0, le=64)
    """Processes that wait with their model loaded, and take the place of a lost worker that does not train.
    Each holds a whole model in the host's memory and no device. Not where workers have GPUs."""

    scorer_workers: int = Field(default=2, ge=1, le=256)
    """Processes that score images."""

    scorer_gpu: float = Field(default=0.0, ge=0, le=1)
    """Share of a GPU that each of them takes, for judges that are large models (`geneval`, `deepseek-ocr`,
    `clip-score`, `pick-score`); 0 leaves them on the CPU."""

    threads: int = Field(default=1, ge=1, le=256)
    """Torch threads a worker. More than one is slower when workers share cores."""

    start_timeout_s: float = Field(default=300.0, ge=1, le=LONGEST_S)
    """Seconds that all workers together may take to start."""

    commit_steps: int = Field(default=4, ge=0, le=200)
    """Denoising steps after which a device's unfinished samples are saved with the driver: what a lost device
    takes with it. 0 saves finished samples only. Drafts are saved every two steps at most."""

    commit_s: float = Field(default=1.0, ge=0, le=LONGEST_S)
    """Seconds of work that such a save must be worth: where `commit_steps` take a device less, it does a
    multiple of them first. 0 saves every `commit_steps`, however quick they are."""

    lease_s: float = Field(default=300.0, ge=1, le=LONGEST_S)
    """Seconds without a sign of life after which a device counts as hung: it is killed, and others do its
    samples. It must be longer than loading the weights takes, and longer than what a device does between two
    saves (see `commit_steps`), decoding included."""

    trainer_limit_s: float = Field(default=7200.0, ge=1, le=LONGEST_S)
    """Seconds that one call of the trainer may take, such as an iteration's training steps, before it counts
    as hung: the run then ends with an error, and can be resumed."""

    scorer_limit_s: float = Field(default=1800.0, ge=1, le=LONGEST_S)
    """Seconds that a scorer may take for one call, 16 images at most, before it counts as hung: it is killed
    and replaced, and its images are judged again. It must be longer than a remote judge's own retries."""

    notices: str = Field(default="none", min_length=1)
    """Whose preemption notices the spot workers watch for: `aws`, `gcp`, `azure`, `alibaba`, `kubernetes` or
    `none`. One of another package: its entry point's name, or `package.module:Name`. Under a notice a worker
    gives back what it has and gets nothing more."""

    notice_url: str = ""
    """Where the provider's metadata service answers, http://HOST[:PORT]; empty is the provider's own.
    `{worker}` in its path becomes the worker's name, for a service that answers for several."""

    history: bool = False
    """Keep a history in the home folder (`history/RUN`): every lease, commit, delivery, loss and denoising
    step, a line each, by which `spotlight chaos` checks its promises. Workers stop after each step then."""

    @model_validator(mode="after")
    def _enough_devices_to_train(self) -> Self:
        if self.trainer_workers > self.reserved_workers:
            raise ValueError(
                f"runtime.trainer_workers is {self.trainer_workers}, above runtime.reserved_workers="
                f"{self.reserved_workers}: reserved devices alone train; lower it, or raise reserved_workers"
            )
        return self

    @model_validator(mode="after")
    def _local_processes_suffice(self) -> Self:
        if self.cluster == "ray":
            return self
        if self.ray_address:
            raise ValueError(
                "runtime.cluster is local, which starts processes of this machine, but runtime.ray_address "
                f"is {self.ray_address!r}; leave it empty, or set runtime.cluster=ray"
            )
        if self.scorer_gpu:
            raise ValueError(
                f"runtime.scorer_gpu is {self.scorer_gpu:g}, but runtime.cluster=local divides no GPUs; set "
                "it to 0, or set runtime.cluster=ray"
            )
        return self

    @model_validator(mode="after")
    def _a_standby_has_a_use(self) -> Self:
        if self.standby_workers and self.reserved_workers + self.spot_workers == self.trainer_workers:
            raise ValueError(
                f"runtime.standby_workers is {self.standby_workers}, but every worker trains, and one that "
                "trains cannot be replaced within a run; set it to 0, or raise spot_workers"
            )
        return self
