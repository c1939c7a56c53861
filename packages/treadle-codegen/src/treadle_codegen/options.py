"""Options of the code generator: one frozen value, part of every cache key that depends on it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path

import platformdirs

from treadle_codegen.errors import OptionError


def default_cache_dir() -> Path:
    """`$TREADLE_CACHE_DIR`, else the platform's directory: on Linux `$XDG_CACHE_HOME/treadle` or `~/.cache/treadle`."""
    given = os.environ.get("TREADLE_CACHE_DIR")
    return Path(given) if given else platformdirs.user_cache_path("treadle")


@dataclass(frozen=True, slots=True)
class CodegenOptions:
    """Choices of the code generator.

    threads: OpenMP threads for kernels; 1 emits no OpenMP at all, 0 means what `torch.get_num_threads()` says.
    pack_weights: compute what depends on parameters alone once (packed weights of convolutions and linear layers, folded batch norms), and
        again when a parameter changes; changes are seen by address, version counter, and bits: the kernel tells which pages were written,
        or a checksum is made on every call.
    frozen_weights: the user's promise that parameters are written only through themselves, never behind their version counters
        (`.data`, `.numpy()`, DLPack, C). Then nothing is asked and no checksum made.
    verify: check the contract of every pass after it has run; a violation raises InternalError with the pass's name.
    dump_passes: a directory that receives what every pass makes, one folder per graph, one numbered text file per pass.
    max_fusion_members: most loops that are fused into one kernel.
    max_row_bytes: largest row buffer that a kernel keeps on the stack.
    specialised_shapes: for how many sets of sizes of a dynamic graph kernels of their own are compiled in the background, when enough
        time is spent at them; 0: none.
    cuda_graphs: record the work of a call once and replay it from then on, where the target can.
    autotune: measure matrix products and kernels in several variants on the device, and take the fastest; what was found is kept in
        the cache. On targets that have a clock.
    cache_dir: where compiled libraries are kept.
    cache_bytes: size bound of that directory; least recently used libraries go first.
    """

    threads: int = 0
    pack_weights: bool = True
    frozen_weights: bool = False
    verify: bool = False
    dump_passes: Path | None = None
    max_fusion_members: int = 48
    max_row_bytes: int = 1 << 18
    specialised_shapes: int = 4
    cuda_graphs: bool = False
    autotune: bool = False
    cache_dir: Path = field(default_factory=default_cache_dir)
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("threads", "max_fusion_members", "max_row_bytes", "specialised_shapes", "cache_bytes"):
            value, least = getattr(self, name), int(name == "max_fusion_members")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"option {name!r} must be an integer >= {least}, got {value!r}")

    @classmethod
    def from_dict(cls, options: dict[str, object]) -> CodegenOptions:
        """Options by name; raises OptionError naming an unknown name and the known ones."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(f"unknown codegen option {name!r}; known: {', '.join(known)}")
        paths = {
            name: Path(str(options[name])) for name in ("cache_dir", "dump_passes") if options.get(name) is not None
        }
        options = {**options, **paths}
        return cls(**options)  # type: ignore[arg-type]
