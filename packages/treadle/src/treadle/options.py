"""Every option of treadle, declared once: name, type, default, help, and the package that receives it.

``treadle.config`` holds the values for the process, ``treadle.compile(..., options={...})`` overrides them for one compile. Packages
receive frozen dataclasses made here and never read global state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import OptionValue, unknown_name

if TYPE_CHECKING:
    from treadle_codegen import CodegenOptions
    from treadle_tracer import TracerOptions


@dataclass(frozen=True)
class Option:
    """One option: `owner` is "treadle", "tracer" or "codegen"; a `default` of None in a non-optional type means "the owner's"."""

    name: str
    type: type
    default: Any
    help: str
    owner: str = "treadle"
    environment: str | None = None

    def check(self, value: Any) -> Any:
        """`value`, if this option can have it; raises OptionValue."""
        if value is None and self.default is None:
            return value
        if self.type is Path and isinstance(value, (str, Path)):
            return Path(value)
        if type(value) is not self.type:
            raise OptionValue(f"option {self.name!r} must be {self.type.__name__}, got {value!r}. {self.help}")
        return value

    def initial(self) -> Any:
        """The default, or what the environment variable says."""
        text = os.environ.get(self.environment) if self.environment else None
        if text is None or text == "":
            return self.default
        if self.type is bool:
            return text.lower() not in ("0", "false", "no", "off")
        return self.check(self.type(text))


OPTIONS: tuple[Option, ...] = (
    Option(
        "raise_internal_errors",
        bool,
        False,
        "raise bugs of treadle instead of warning and running the graph in eager",
        environment="TREADLE_RAISE_INTERNAL_ERRORS",
    ),
    Option(
        "dump_dir", Path, None, "directory for reproducers of internal errors; None: the system's temporary directory"
    ),
    Option("recompile_limit", int, 8, "compiled versions kept of one function before it runs in eager", owner="tracer"),
    Option(
        "capture_scalars",
        bool,
        False,
        "keep .item(), nonzero, boolean masks and other sizes that depend on data in the graph, as fullgraph=True does",
        owner="tracer",
        environment="TREADLE_CAPTURE_SCALARS",
    ),
    Option("threads", int, 0, "threads of generated kernels; 0: as many as torch.get_num_threads()", owner="codegen"),
    Option(
        "pack_weights",
        bool,
        True,
        "compute what depends on parameters alone once (packed weights, folded batch norms), again when one changes",
        owner="codegen",
    ),
    Option("verify", bool, False, "run the IR verifier of the code generator between its passes", owner="codegen"),
    Option("max_fusion_members", int, None, "most loops fused into one kernel", owner="codegen"),
    Option("max_row_bytes", int, None, "largest row buffer a kernel keeps on the stack", owner="codegen"),
    Option(
        "specialised_shapes",
        int,
        None,
        "for how many sets of sizes of a dynamic graph kernels of their own are compiled in the background; 0: none",
        owner="codegen",
    ),
    Option(
        "cache_dir",
        Path,
        None,
        "directory of compiled kernels; None: $TREADLE_CACHE_DIR, else the user's cache",
        owner="codegen",
    ),
    Option("cache_bytes", int, None, "size bound of the kernel cache in bytes", owner="codegen"),
)

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}

# What a mode sets. On the CPU the three differ in nothing yet: CUDA graphs and autotuning come with the GPU target.
MODES: Mapping[str, Mapping[str, Any]] = {"default": {}, "reduce-overhead": {}, "max-autotune": {}}


class Config:
    """The process-wide values: ``config.verify = True``, or for a while ``with config.patch(verify=True): ...``."""

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {option.name: option.initial() for option in OPTIONS})

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name not in values:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(str(unknown_name("option", name, BY_NAME)))
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in BY_NAME:
            raise unknown_name("option", name, BY_NAME)
        self._values[name] = BY_NAME[name].check(value)

    def __dir__(self) -> list[str]:
        return [*BY_NAME, "patch", "help"]

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    @contextmanager
    def patch(self, **values: Any) -> Iterator[None]:
        """Set options for the duration of a with block."""
        before = dict(self._values)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            self._values.update(before)

    def help(self) -> str:
        """One line per option: name, type, current value, meaning."""
        return "\n".join(f"{o.name}: {o.type.__name__} = {self._values[o.name]!r}  {o.help}" for o in OPTIONS)


config = Config()


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compile: the process's values, overridden by the mode and by ``options=``."""

    fullgraph: bool
    dynamic: bool | None
    values: Mapping[str, Any]
    given: Mapping[str, Any]

    def _of(self, owner: str) -> dict[str, Any]:
        return {o.name: self.values[o.name] for o in OPTIONS if o.owner == owner and self.values[o.name] is not None}

    def for_tracer(self) -> TracerOptions:
        from treadle_tracer import TracerOptions

        raising = self.values["raise_internal_errors"]
        return TracerOptions(self.fullgraph, self.dynamic, raise_internal_errors=raising, **self._of("tracer"))

    def for_codegen(self) -> CodegenOptions:
        from treadle_codegen import CodegenOptions

        return CodegenOptions(**self._of("codegen"))


def compile_options(
    fullgraph: bool, dynamic: bool | None, mode: str | None, options: Mapping[str, Any] | None, own_backend: bool
) -> CompileOptions:
    """Check and combine what `treadle.compile` was given. For backends that are not treadle's own, `options` is theirs to check."""
    if not isinstance(fullgraph, bool):
        raise OptionValue(f"fullgraph must be True or False, got {fullgraph!r}")
    if dynamic not in (None, True, False):
        raise OptionValue(f"dynamic must be None, True or False, got {dynamic!r}")
    if mode is not None and mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if options is not None and not isinstance(options, Mapping):
        raise OptionValue(f"options must be a dict of option names to values, got {options!r}")
    given = dict(options or {})
    values = {o.name: getattr(config, o.name) for o in OPTIONS} | dict(MODES[mode or "default"])
    for name, value in given.items() if own_backend else ():
        if name not in BY_NAME:
            raise unknown_name("option", name, BY_NAME)
        values[name] = BY_NAME[name].check(value)
    return CompileOptions(fullgraph, dynamic, values, given)
