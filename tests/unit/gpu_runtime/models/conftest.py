"""Whole pipelines of the families, saved once for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_pipelines import Saved, save_pipeline


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder of a family's whole pipeline, not to be changed."""
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in folders:
            folders[family] = save_pipeline(family, tmp_path_factory.mktemp(family) / "model")
        return folders[family]

    return folder_of
