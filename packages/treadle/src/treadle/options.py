"""The options of treadle, each declared once: name, type, default, help, and the package that receives it.

``treadle.config`` holds the values of the process, ``treadle.compile(..., options={...})`` overrides them for one compile. The packages
receive frozen dataclasses and never read global state.
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
    """One option.

    help: what changes when it is set, with its unit. owner: the package that receives it, "treadle", "tracer", "autograd" or "codegen".
    environment: a variable that sets the initial value. bounds: the smallest and the largest value. An option whose default is None may
    also be set to None.
    """

    name: str
    type: type
    default: Any
    help: str
    owner: str = "treadle"
    environment: str | None = None
    bounds: tuple[float, float] | None = None

    def check(self, value: Any) -> Any:
        """`value` in the option's type. Raises OptionValue if the option cannot have it."""
        if value is None and self.default is None:
            return value
        if self.type is Path and isinstance(value, (str, Path)):
            return Path(value)
        if self.type is float and type(value) is int:
            value = float(value)
        number: Any = value
        if type(value) is not self.type or (self.bounds and not self.bounds[0] <= number <= self.bounds[1]):
            raise OptionValue(f"option {self.name!r} must be {self.type.__name__}, got {value!r}. {self.help}")
        return value

    def initial(self) -> Any:
        """The value of the environment variable, else the default."""
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
        "True: raise an InternalError for a bug of treadle. False: warn, and run the graph in eager",
        environment="TREADLE_RAISE_INTERNAL_ERRORS",
    ),
    Option(
        "dump_dir",
        Path,
        None,
        "directory for programs that reproduce internal errors. None: the system's directory for temporary files",
    ),
    Option(
        "recompile_limit",
        int,
        8,
        "compiled versions of one function, at most. A function that needs more runs in eager",
        owner="tracer",
    ),
    Option(
        "capture_scalars",
        bool,
        None,
        "True: keep nonzero, boolean masks and other data-dependent sizes in the graph, as fullgraph=True does. None: where Python can run "
        "the function instead when the graph finds that an assumption about them does not hold. False: break the graph there",
        owner="tracer",
        environment="TREADLE_CAPTURE_SCALARS",
    ),
    Option(
        "decide_on_inputs",
        bool,
        True,
        "True: what the function decides on numbers of small tensors on the CPU that come from outside (`if count > 5`) is decided when it "
        "is compiled, and computed again at each call to choose the compiled version. False: it breaks the graph, or the graph checks it",
        environment="TREADLE_DECIDE_ON_INPUTS",
    ),
    Option(
        "setup_in_eager",
        bool,
        True,
        "True: a call that changes what its compiled code would rely on, as the first step of an optimizer does, which makes the state, "
        "runs in eager, and is compiled when another call like it comes; so does the first call that raises. False: they are compiled at "
        "once. With the backend codegen",
        environment="TREADLE_SETUP_IN_EAGER",
    ),
    Option(
        "leave_unprofitable",
        bool,
        True,
        "True: a function whose graphs are so small that they cost more than they save is left to Python, unless fullgraph=True. "
        "False: it is compiled. On the CPU, with the backend codegen",
        environment="TREADLE_LEAVE_UNPROFITABLE",
    ),
    Option(
        "memory_budget",
        float,
        1.0,
        "memory for values that are kept from forward to backward, from 0 to 1, as a part of what is kept by default. Less memory, more "
        "computing again in backward",
        owner="autograd",
        environment="TREADLE_MEMORY_BUDGET",
        bounds=(0.0, 1.0),
    ),
    Option(
        "threads",
        int,
        0,
        "number of threads that a generated kernel uses. 0: torch.get_num_threads()",
        owner="codegen",
    ),
    Option(
        "pack_weights",
        bool,
        True,
        "True: compute what depends on parameters alone (packed weights, folded batch norms) once, and again when a parameter "
        "changes. False: compute it in every call",
        owner="codegen",
    ),
    Option(
        "frozen_weights",
        bool,
        False,
        "True: nobody writes to parameters behind their version counters (through .data, .numpy(), DLPack or C), so calls do "
        "not look for such writes, and the weights of linear layers are packed as well. False: such writes are seen, too",
        owner="codegen",
    ),
    Option(
        "verify",
        bool,
        False,
        "True: verify the code generator's IR after every pass, which slows compiling",
        owner="codegen",
    ),
    Option("max_fusion_members", int, 48, "loops that are fused into one kernel, at most", owner="codegen"),
    Option(
        "max_row_bytes", int, 1 << 18, "size in bytes of a row buffer on a kernel's stack, at most", owner="codegen"
    ),
    Option(
        "specialised_shapes",
        int,
        4,
        "sets of sizes of one dynamic graph that get specialised kernels, compiled in the background, at most. 0: none",
        owner="codegen",
    ),
    Option(
        "cuda_graphs",
        bool,
        False,
        "True: record a graph's work on a CUDA device at its second call, and replay it from then on, which costs the host less. "
        "False: launch the kernels one by one. mode='reduce-overhead' sets it. No effect on the CPU",
        owner="codegen",
    ),
    Option(
        "autotune",
        bool,
        False,
        "True: measure kernels, and on GPUs matrix products, in several variants while compiling, and take the fastest. "
        "The results are kept in the cache",
        owner="codegen",
    ),
    Option(
        "cache_dir",
        Path,
        None,
        "directory of compiled kernels. None: $TREADLE_CACHE_DIR, else treadle in $XDG_CACHE_HOME or ~/.cache",
        owner="codegen",
    ),
    Option(
        "cache_bytes",
        int,
        1 << 30,
        "size of the kernel cache in bytes, at most. The least recently used kernels are removed first",
        owner="codegen",
    ),
)

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}

# Mode -> options that it sets. On the CPU there is nothing to record.
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}


class Config:
    """The options' values of this process: ``config.verify = True``, or in a block ``with config.patch(verify=True): ...``."""

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
        """Set options in a with block."""
        before = dict(self._values)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            self._values.update(before)

    def help(self) -> str:
        """One line per option: name, type, current value, default, and what changes when it is set."""
        values = self._values
        return "\n".join(
            f"{o.name}: {o.type.__name__} = {values[o.name]!r} (default {o.default!r})  {o.help}" for o in OPTIONS
        )


config = Config()


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compile: the values of the process, overridden by the mode and by ``options=``."""

    fullgraph: bool
    dynamic: bool | None
    values: Mapping[str, Any]
    given: Mapping[str, Any]

    def _of(self, owner: str) -> dict[str, Any]:
        return {o.name: self.values[o.name] for o in OPTIONS if o.owner == owner and self.values[o.name] is not None}

    def for_tracer(self, is_codegen: bool = False) -> TracerOptions:
        """is_codegen: the backend is "codegen", whose costs the tracer knows."""
        from treadle_tracer import TracerOptions

        return TracerOptions(
            self.fullgraph,
            self.dynamic,
            raise_internal_errors=self.values["raise_internal_errors"],
            decide_on_inputs=self.values["decide_on_inputs"],
            setup_in_eager=is_codegen and self.values["setup_in_eager"],
            leave_unprofitable=is_codegen and self.values["leave_unprofitable"] and not self.fullgraph,
            **self._of("tracer"),
        )

    def for_codegen(self) -> CodegenOptions:
        from treadle_codegen import CodegenOptions

        return CodegenOptions(**self._of("codegen"))


def compile_options(
    fullgraph: bool, dynamic: bool | None, mode: str | None, options: Mapping[str, Any] | None, own_backend: bool
) -> CompileOptions:
    """Check and combine the arguments of `treadle.compile`. A foreign backend (`own_backend` False) checks `options` itself."""
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
