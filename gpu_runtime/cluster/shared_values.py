"""Values that are pickled once and mapped by every process that receives them, without copying their arrays.

They lie in memory without a name in any folder: the kernel frees it when the last process has closed it,
however that process ended.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import weakref
from typing import Any

_COUNT = struct.Struct("<Q")
_ALIGNED_BYTES = 64


class SharedValue:
    """A stand-in for a value in the arguments of calls; the value itself arrives, with read-only arrays.

    Args:
        value: anything that can be pickled.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        parts = [memoryview(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))]
        parts += [buffer.raw() for buffer in buffers]
        self._descriptor = os.memfd_create("spotlight-shared-value")
        self._close = weakref.finalize(self, os.close, self._descriptor)
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(_COUNT.pack(len(parts)))
            file.writelines(_COUNT.pack(part.nbytes) for part in parts)
            for part in parts:
                file.seek(-file.tell() % _ALIGNED_BYTES, os.SEEK_CUR)
                file.write(part)

    def close(self) -> None:
        """Release the memory; processes that have mapped it keep it."""
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _mapped, (f"/proc/{os.getpid()}/fd/{self._descriptor}",)


def _mapped(path: str) -> Any:
    """Return the value shared by another process."""
    with open(path, "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (count,) = _COUNT.unpack_from(memory)
    parts, end = [], (1 + count) * _COUNT.size
    for number in range(count):
        (size,) = _COUNT.unpack_from(memory, (1 + number) * _COUNT.size)
        begin = end + -end % _ALIGNED_BYTES
        end = begin + size
        parts.append(memory[begin:end])
    return pickle.loads(parts[0], buffers=parts[1:])
