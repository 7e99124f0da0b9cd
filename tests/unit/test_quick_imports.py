"""Imports without garbage collection: it is off within, and afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from storage.processes import quick_imports


def test_collection_is_off_within_and_then_as_before():
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled(), "the process that imports has switched it off itself"
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_it_as_before():
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
