"""What the rest of the package knows of a target: one record, and the protocols of its parts.

IR, lowering, fusion and the host function know no language and no device. They receive what they need of this record:
lowering the dtypes and the costs, fusion the costs, the host the entry ABI and the allocation.

A process that finds all its graphs compiled needs no more of a target than `load_kept`, `abi` and `allocation`. So a record names its
renderer and its rewrites by functions that import them: 100 modules, a tenth of a warm first step of BERT.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import fx

from treadle_codegen.costs import Costs
from treadle_codegen.options import CodegenOptions

if TYPE_CHECKING:
    from treadle_codegen.rewrite.pipeline import EarlyRewrite, Rewrite
    from treadle_codegen.schedule.kernel import Kernel
    from treadle_codegen.targets.renderer import Renderer
    from treadle_codegen.tune.clock import Clock

# Given tensors, a function that samples their bits where they lie now.
Sampler = Callable[[Sequence[torch.Tensor]], Callable[[], int]]


class Table:
    """What the entry points of one call in flight read: a place for every buffer and number that kernels take.

    `slots[k]` takes a buffer's entry (`EntryABI.buffer_text`, `EntryABI.place`) or an integer, `floats[k]` a float; the
    two may be one object. Slot 0 is the target's own. `argument` is what an entry point is called with. `error.value` is
    not 0 after a kernel met an index out of range; the host sets it back to 0.
    """

    # A plain class: calls make tables, and the tracer's hook would trace the generated constructor of a tuple or dataclass.
    __slots__ = ("argument", "error", "floats", "slots")

    def __init__(self, slots: Any, floats: Any, argument: Any, error: Any) -> None:
        self.slots, self.floats, self.argument, self.error = slots, floats, argument, error


class EntryABI(Protocol):
    """How the host function hands buffers and numbers to entry points. Asked when the host function is generated or fitted
    to sizes, never per call: what it returns becomes text of the host function."""

    def new_table(self, size: int) -> Table:
        """A table with slots 0 to `size - 1`."""
        ...

    def buffer_text(self, tensor: str, address: str | None = None) -> str:
        """The expression for a tensor's table entry; `tensor` is a variable, `address` one that holds its `data_ptr()`."""
        ...

    def pool_entry(self, pool: torch.Tensor) -> Any:
        """The table entry of a temporary that stands at the start of the tensor `pool`."""
        ...

    def place(self, slots: Any, arena: torch.Tensor, places: Sequence[tuple[int, int, torch.dtype]]) -> None:
        """Fill in the entries of planned temporaries: (slot, bytes into the arena, dtype) of each."""
        ...


#: Bytes from which on `Allocation.large` is told of an output: at least one page of 2 MiB lies inside, wherever it begins.
LARGE = 4 << 20


class Allocation(NamedTuple):
    """Where a graph's outputs, arena and workspaces come from.

    `empty_strided(shape, strides, dtype=)` makes outputs, `empty(elements, dtype=)` memory for temporaries. `large(tensor)` is called with
    an output that has, or may have, at least `LARGE` bytes, before anything is written to it, and returns it; None: nothing is to be done.

    Where a call returns before its work is done, a workspace cannot keep memory: another stream might use it too early. Then
    every call takes its temporaries' memory from `empty`, whose allocator knows streams, and shares it with all graphs. Operators
    need tensors of that memory, and `unowned(memory)` makes one that does not keep it, so that it is made once per address.
    None: work is done when a call returns, and workspaces keep their memory.
    """

    empty_strided: Callable[..., torch.Tensor]
    empty: Callable[..., torch.Tensor]
    unowned: Callable[[torch.Tensor], torch.Tensor] | None = None
    large: Callable[[torch.Tensor], torch.Tensor] | None = None


class Recorder(Protocol):
    """Records the work that a device is given, and lets it be given again at once (CUDA graphs). One for all graphs of a device."""

    lock: AbstractContextManager[Any]
    """Held while work is recorded or replayed; the thread that holds it may take it again."""

    def is_recording(self) -> bool:
        """Whether the current stream's work is being recorded, by this recorder or by the program itself."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Call `work`, whose work on the device is recorded and not done; returns what does it, on the current stream.

        Memory that `work` allocates and releases is shared with the other recordings. Random numbers are drawn at each
        replay, and the generator advances as if the operators ran. Raises RuntimeError for work that cannot be recorded.
        """
        ...

    def in_order(self) -> AbstractContextManager[None]:
        """Around a replay: it begins after the last one has ended, whichever stream that was on."""
        ...

    def release(self, tensors: Iterable[torch.Tensor]) -> None:
        """Called before the memory of a recording is given up, which replays on other streams may still use."""
        ...


class Probe(NamedTuple):
    """How bits of static inputs are sampled, to notice writes that no version counter sees.

    `text` is added to the unit and exports the entry point `entry`; `sampler` makes the sampling function of it. A target
    without compiled probe has no text and no entry, and its `sampler` receives None.
    """

    text: str
    entry: str
    sampler: Callable[[Any], Sampler]


class Rewrites(NamedTuple):
    """Rewrites of graphs that pay off on one target only.

    early: those that change layouts or dtypes inside a graph, with static inputs or without; run first.
    static: those that lay out or combine static inputs, run in this order after those that pay off on every target.
    cheaply_checked: those of `static` that pay off only where it is cheap to check that the weights did not change: with
        `frozen_weights`, or where `Target.cheap_probe` says so. A checksum of the weights takes as long as they save.
    fake_rules: fake implementations of what they call and PyTorch has no fake kernel for.
    parts: finds the parts of a joint graph's forward half that they keep out of memory (`recomputed`); None where they have none.
    """

    early: tuple[EarlyRewrite, ...] = ()
    static: tuple[Rewrite, ...] = ()
    cheaply_checked: frozenset[Rewrite] = frozenset()
    fake_rules: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
    parts: Callable[[fx.Graph, Container[fx.Node]], list[frozenset[fx.Node]]] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that is true of one target only.

    name: what `compile_graph(..., target=...)` takes.
    devices: types of the devices whose tensors its kernels can address.
    operator_devices: types of the devices whose tensors a graph may also have: they are left to ATen's operators. A graph with
        a tensor elsewhere is refused.
    dtypes: dtypes that its loops load, store and compute in; operators on others are called through ATen.
    renderer: makes kernels and units as text, builds and loads them; made once per graph from the options.
    load_kept: `Renderer.load` for a unit that an earlier process has rendered with the same options. None: graphs are not kept.
    abi: how the host calls entry points, and what it passes.
    allocation: where memory comes from, for a graph on the given device.
    probe: how bits of static inputs are sampled; None where that costs more than it saves, and only frozen weights are laid out.
    costs: the numbers by which lowering, fusion and memory planning choose.
    rewrites: graph rewrites that pay off on it.
    cheap_probe: whether in this process the probe takes microseconds, whatever the size of the weights. None: it does not.
    externs: callables that replace the operator of that overload's name, with the same arguments.
    why_not_local_row: why a kernel cannot keep a row of that temporary inside (None: only a row that is too long for the options cannot).
    interrupt_builds: ends builds in the background early, because the process ends.
    recorder: what records and replays calls of graphs on a device, if it can.
    clock: measures on a device, for autotuning; its renderers then offer choices (`tune.Choices`). None: nothing is tuned.
    identity: what of this machine its kernels' texts depend on. None: it does not tell, and nothing made of whole graphs is kept.
    product_loops: whether its renderer writes matrix products (`ir.product`), so that autotuning may try them.
    allows_tf32: whether PyTorch's switches allow matrix products of float32 to round their factors to TF32.
    """

    name: str
    devices: tuple[str, ...]
    dtypes: frozenset[torch.dtype]
    renderer: Callable[[CodegenOptions], Renderer]
    abi: EntryABI
    allocation: Callable[[torch.device], Allocation]
    probe: Probe | None
    costs: Costs
    operator_devices: tuple[str, ...] = ()
    rewrites: Callable[[], Rewrites] = Rewrites
    cheap_probe: Callable[[], bool] | None = None
    externs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    why_not_local_row: Callable[[Kernel, str], str | None] | None = None
    interrupt_builds: Callable[[], None] = lambda: None
    recorder: Callable[[torch.device], Recorder | None] = lambda device: None
    clock: Callable[[torch.device], Clock] | None = None
    identity: Callable[[], str] | None = None
    load_kept: Callable[[CodegenOptions, str, Sequence[str]], tuple[dict[str, Callable[..., Any]], bool]] | None = None
    product_loops: bool = True
    allows_tf32: Callable[[], bool] = lambda: False
