"""The address of the driver's key-value store. A driver gives it to workers without importing torch."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import GroupBrokenError

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True)
class StoreAddress:
    """The address at which the driver's key-value store listens."""

    host: str
    port: int

    def connect(self, timeout_s: float) -> dist.TCPStore:
        """Open a new connection.

        Raises:
            GroupBrokenError: if the store does not answer in time.
        """
        import torch.distributed as dist

        try:
            return dist.TCPStore(
                self.host, self.port, is_master=False, timeout=datetime.timedelta(seconds=timeout_s)
            )
        except (dist.DistError, RuntimeError) as error:
            raise GroupBrokenError(
                f"no store of a driver at {self.host}:{self.port} within {timeout_s} s: {error}"
            ) from error
