"""Calls of workers are checked from the caller to the method.

`make lint` runs pyright over this file: each `ignore` below names an error that it has to find, and an
`ignore` without an error is an error itself.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import inspect
import re
import socket
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.fleet.trainers import Trainers
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.sequence_parallel.control_store import StoreAddress
from gpu_runtime.worker.protocol import TrainingMembership, Worker
from gpu_runtime.worker.scoring_worker import ScoringWorker
from gpu_runtime.worker.training_group import divided
from gpu_runtime.worker.worker import DeviceWorker
from storage.errors import DeviceFaultError, GroupBrokenError

if TYPE_CHECKING:

    def wrong_calls(
        device: RemoteActor[Worker], scorer: RemoteActor[ScoringWorker], trainers: Trainers
    ) -> None:
        device.call(Worker.begin_samples, WeightsVersion(1), 0, [])  # pyright: ignore[reportCallIssue]
        device.call(Worker.advance_samples, "0", 3)  # pyright: ignore[reportArgumentType]
        device.call(ScoringWorker.ready)  # pyright: ignore[reportArgumentType]
        device.call("ready")  # pyright: ignore[reportArgumentType, reportCallIssue]
        scorer.call(Worker.ready)  # pyright: ignore[reportArgumentType]
        answer: Future[int] = device.call(Worker.leave_group)  # pyright: ignore[reportAssignmentType]
        trainers.ask(Worker.train, 3)  # pyright: ignore[reportArgumentType]
        worker: type[Worker] = ScoringWorker  # pyright: ignore[reportAssignmentType]
        del answer, worker


def test_what_may_be_asked_is_what_the_worker_has():
    asked = {
        name: value for name, value in vars(Worker).items() if inspect.isfunction(value) and name[0] != "_"
    }
    assert len(asked) >= 2
    for name, method in asked.items():
        had = dict(inspect.signature(getattr(DeviceWorker, name)).parameters)
        had.pop("_ray_trace_ctx", None)  # Ray's, where a test of this process has made it an actor before
        assert had == dict(inspect.signature(method).parameters), name


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (torch.OutOfMemoryError, "CUDA says no"),
        (torch.AcceleratorError, "CUDA says no"),
        # cuBLAS, cuDNN and Triton have no class of their own.
        (RuntimeError, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle )`"),
        (RuntimeError, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        (RuntimeError, "Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
)
def test_a_fault_of_the_device_is_the_loss_of_a_worker_and_an_error_of_a_trainer(
    kind: type[RuntimeError], says: str
):
    def fail(*_: object) -> None:
        raise kind(says)

    worker: Any = object.__new__(DeviceWorker)  # without a model
    worker._samples, worker._trainer = SimpleNamespace(advance=fail), None
    with pytest.raises(DeviceFaultError, match=re.escape(f"{kind.__name__}: {says}")):
        worker.advance_samples(0, 1)
    worker._trainer, worker._is_spot = "any", True
    with pytest.raises(DeviceFaultError, match=re.escape(says)):
        worker.advance_samples(0, 1)
    worker._is_spot = False
    with pytest.raises(kind, match=re.escape(says)):
        worker.advance_samples(0, 1)
    worker._trainer, worker._samples = None, SimpleNamespace(advance=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault of the code is none of the device
        worker.advance_samples(0, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("restore", [{}]), ("use_training_weights", [WeightsVersion(1)]), ("begin_training", [[0]]),
        ("end_training", []), ("set_kl_weight", [0.5]),
    ],
)  # fmt: skip
def test_a_spot_device_that_cannot_hold_a_trainer_s_state_is_lost_alone(name: str, arguments: list[Any]):
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("2 GiB are missing")

    worker: Any = object.__new__(DeviceWorker)  # without a model
    worker._trainer = SimpleNamespace(restore=fail, begin=fail, end=fail, set_kl_weight=fail)
    worker._set_aside = worker._training_group = worker._member = None
    worker._samples = SimpleNamespace(drop=lambda: None)
    worker._policy = SimpleNamespace(gather=fail)
    for worker._is_spot, expected in ((True, DeviceFaultError), (False, torch.OutOfMemoryError)):
        with pytest.raises(expected, match="2 GiB are missing"):
            getattr(worker, name)(*arguments)


def test_a_training_device_that_cannot_reach_the_driver_says_so_in_words():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    place = TrainingMembership(1, 2, StoreAddress("127.0.0.1", port), meet_s=0.2, exchange_s=1.0)
    with pytest.raises(GroupBrokenError, match=f"no store of a driver at 127.0.0.1:{port} within 0.2 s"):
        divided(place, torch.device("cpu"))
