"""What calls of actors carry: as bytes where it is small, as it is where its arrays are large."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.cluster.ray.packing import MOST_ARRAY_BYTES, Answering, pack, pack_call, unpack


class Adder:
    def add(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return one + other


@pytest.mark.parametrize("size", [0, 1, MOST_ARRAY_BYTES // 4, MOST_ARRAY_BYTES // 4 + 1])
def test_a_value_comes_back_as_it_was(size: int):
    value = {"weights": np.arange(size, dtype=np.float32), "step": 3}
    back = unpack(pack(value))
    assert back["step"] == 3
    assert back["weights"].dtype == np.float32 and np.array_equal(back["weights"], value["weights"])


def test_large_arrays_are_not_copied_into_bytes():
    limit = np.zeros(MOST_ARRAY_BYTES, np.uint8)
    assert isinstance(pack(limit), bytes)
    assert not isinstance(pack([limit, np.zeros(1, np.uint8)]), bytes)
    large = np.zeros(MOST_ARRAY_BYTES + 1, np.uint8)
    assert unpack(pack(large)) is large


def test_a_call_reaches_its_method_with_its_arguments():
    one, other = np.ones(2), np.full(2, 3.0)
    call = pack_call("add", (one,), {"other": other})
    assert unpack(Answering(Adder, (), None).answer(*call)).tolist() == [4.0, 4.0]


def test_what_a_method_raises_is_raised():
    with pytest.raises(AttributeError, match="subtract"):
        Answering(Adder, (), None).answer(*pack_call("subtract", (), {}))
