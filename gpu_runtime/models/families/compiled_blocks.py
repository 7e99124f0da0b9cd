"""Compiles a transformer's blocks with torch.compile, each kind once: they are alike and do all the work."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from storage.errors import ConfigurationError

_GRAPHS_PER_BLOCK = 64
"""Most graphs of a block: generating, evaluating, training, with and without adapters, per batch shape."""


def compile_blocks(transformer: torch.nn.Module, lengths_vary: bool, backend: str = "inductor") -> None:
    """Compile every block of a diffusers transformer when it is first called.

    The weights, their names and `state_dict` stay the same. A graph is compiled when it is first needed; more
    compilations of a block than a run can need are an error instead of a silent fallback to eager mode,
    whose outputs are rounded differently.

    Args:
        transformer: transformer with adapters, or before they are added.
        lengths_vary: True if sequences have many lengths; one graph then serves all, as compiling one per
            prompt length would take longer than it saves.
        backend: backend of torch.compile; `eager` traces the blocks, and generates no code.

    Raises:
        ConfigurationError: if the transformer names no blocks.
    """
    names = set(getattr(transformer, "_no_split_modules", None) or ())
    blocks = [module for module in transformer.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigurationError(
            f"model.compile is true, but {type(transformer).__name__} names no blocks to compile; set it to "
            "false"
        )
    limits: Any = torch._dynamo.config
    limits.recompile_limit = _GRAPHS_PER_BLOCK
    limits.fail_on_recompile_limit_hit = True
    for block in blocks:
        # Static shapes if a run has few: a dynamic graph is slower. Otherwise dynamic from the first call on,
        # or a sample's bits would depend on the length that a process saw first.
        block.compile(backend=backend, dynamic=lengths_vary)


def refuse_missing_compiler(device: torch.device) -> None:
    """Refuse to compile where compilation would fail.

    Raises:
        ConfigurationError: if this machine lacks what torch.compile needs for this kind of device.
    """
    if device.type == "cuda":
        # Imported here, as below: the compiler's modules take seconds, and most runs do not need them.
        from torch.utils._triton import has_triton

        has_c_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
        missing = None if has_c_compiler else "a C compiler (gcc, called by Triton)"
        missing = missing if has_triton() else "Triton (comes with torch's CUDA builds)"
    else:
        missing = None if _has_cpp_compiler() else "a C++ compiler (g++)"
    if missing:
        raise ConfigurationError(
            f"model.compile is true, but this machine lacks {missing}; install it, or set model.compile=false"
        )


def _has_cpp_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True
