"""Builds editable installs with setuptools, and refuses all others.

The packages lie flat, as `flows`, `tasks`, `storage`, `ui`: copied into site-packages, such names would be in
another project's way. An editable install leaves them in the checkout.
"""

from __future__ import annotations

from typing import Any, NoReturn

from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
    "get_requires_for_build_sdist", "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip

REFUSAL = (
    "Spotlight installs editable only, because its packages have generic names (flows, tasks, storage, ui) "
    "that would be in another project's way; run `pip install -e .` in a checkout, in a virtual environment "
    "of its own"
)


def prepare_metadata_for_build_wheel(*_: Any, **__: Any) -> NoReturn:
    """Refuse before pip fetches the dependencies.

    Raises:
        SystemExit: always; pip shows its one line.
    """
    raise SystemExit(REFUSAL)


def build_wheel(*_: Any, **__: Any) -> NoReturn:
    """Refuse; arguments as of PEP 517.

    Raises:
        SystemExit: always.
    """
    raise SystemExit(REFUSAL)
