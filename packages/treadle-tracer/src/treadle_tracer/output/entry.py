"""From a `TraceResult` to a `treadle_frame.Entry`: the dry run, the replacement code, the guard program, the fast path."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

import treadle_frame

from ..backend_call import raises_before_writing
from ..bytecode import CodeModel
from ..decided import Decided
from ..errors import Unsupported
from ..values.base import settled
from ..values.cached_answers import CachedAnswer
from .deferred_asserts import asserts_of, raising_as_program, raising_typed
from .deoptimise import Deoptimisation, emit_deoptimisation, may_run_again
from .dropped import check_dropped_generators
from .emit import FrameCode
from .escaping_leaves import check_leaves
from .graph_writes import draws_random_numbers, why_not_deoptimise
from .outside_devices import devices_outside, run_without_devices
from .replacement import Effects, ReplacementBuilder, Usage, emit_graph_call, emit_state_changes
from .resume import Break
from .size_ranges import size_program
from .torch_switches import restoring_switches

if TYPE_CHECKING:
    import torch.fx

    from ..source import Source
    from ..trace.result import TraceResult
    from .dropped_entries import References
    from .guards import DynamicNumbers, TensorGuard


@dataclass(eq=False)
class Payload:
    """What an entry keeps of its compile: `treadle_frame.Entry.payload`.

    graph_module  the traced graph; None when there was nothing to compute
    tensors       the guarded tensors, with the sizes they had
    reason        why the graph ends before the return; None if it does not
    owner         id of the module instance that the entry was made for, see `compilation.module_argument`; None if there is none, or
                  the entry serves other instances too
    guards        the reasons of all guards
    numbers       the ints and floats that are guarded by their value, with that value
    modules       the modules that are guarded by their identity, referred to weakly
    ends          whether outside iterators that the trace has asked have more items
    dynamic       the dynamic sizes, ints and floats; None when there are none
    inputs        where the inputs of the graph come from
    decided       what the trace has decided on numbers of outside tensors
    answers       what the trace relies on cached functions answering
    profit        what a run of the graph saves against eager, in calls of operators (`profitability`); None if that is not known
    inlined       the codes of the functions that the trace has called in place; kept where `profit` is estimated
    goes_on       continuations follow
    grad_mode     the grad mode that `profit` depends on; None if it is the same in both
    is_left       the entry runs the original code, because its graphs are not worth their cost (`unprofitable`)
    references    what the entry is dropped with (`output.dropped_entries`); copies of the payload have the same
    """

    graph_module: torch.fx.GraphModule | None
    tensors: tuple[TensorGuard, ...]
    reason: Unsupported | None
    owner: int | None
    guards: tuple[str, ...] = ()
    numbers: tuple[tuple[Source, int | float], ...] = ()
    modules: tuple[tuple[Source, weakref.ref[torch.nn.Module]], ...] = ()
    ends: tuple[tuple[Source, bool], ...] = ()
    dynamic: DynamicNumbers | None = None
    inputs: tuple[Source, ...] = ()
    decided: Decided = field(default_factory=Decided)
    answers: tuple[CachedAnswer, ...] = ()
    profit: float | None = 0.0
    grad_mode: bool | None = None
    inlined: tuple[weakref.ref[CodeType], ...] = ()
    goes_on: bool = False
    is_left: bool = False
    references: References | None = None

    @classmethod
    def of(cls, gm: torch.fx.GraphModule | None, result: TraceResult, owner: int | None) -> Payload:
        """The payload of a trace, before its guards are complete (`take_guards`)."""
        return cls(gm, result.guards.tensors, result.reason, owner)

    def take_guards(self, result: TraceResult) -> treadle_frame.GuardProgram:
        """Record what the guards of the trace rely on, which is complete then; gives their program."""
        guards = result.guards
        if result.env is not None:
            self.dynamic = guards.add_sizes(result.env)
        if self.graph_module is not None:
            self.inputs = tuple(result.graph.input_sources)
        self.decided, self.answers = guards.decided, guards.answers
        self.numbers, self.modules, self.ends = guards.numbers, guards.modules, guards.ends
        self.guards = tuple(guard.reason for guard in guards)
        return guards.program()

    @property
    def least_profit(self) -> float | None:
        """The profit of a run before which all decisions have to be made anew."""
        return None if self.profit is None else self.profit - (self.decided.cost if self.decided.decisions else 0.0)

    @property
    def modules_gone(self) -> tuple[Source, ...]:
        """Where there was a module that is gone. Then the entry's guard never holds again."""
        return tuple(source for source, module in self.modules if module() is None)


class FramePlan:
    """A replacement whose graph is not compiled yet. A dry run over the same code finds what the graph must return.

    Raises Unsupported if the frame cannot be rebuilt.
    """

    def __init__(self, code: CodeType, model: CodeModel, result: TraceResult):
        self.code, self.model, self.result = code, model, result
        self.usage = Usage()
        self.outdated: str | None = None  # the guard that does not hold behind the call: see `output.outdated`
        self.leaving = Break(code, model, result) if result.kind == "break" else None
        self._give_back(ReplacementBuilder(result.mutations, self.usage))
        check_dropped_generators(result, self.usage)
        check_leaves(self.usage)
        self.usage.check_referents()

    @property
    def outputs(self) -> list[Any]:
        """The graph nodes that the compiled graph must return, in order."""
        return list(self.usage.outputs)

    @property
    def goes_on(self) -> bool:
        """Whether the replacement calls continuations."""
        return self.leaving is not None and bool(self.leaving.exits or self.leaving.on_exception)

    def _give_back(self, builder: ReplacementBuilder) -> None:
        if self.leaving is not None:
            self.leaving.emit(builder)
            return
        value = self.result.value
        assert value is not None
        effects = Effects(builder, [value])
        if builder.mutations or self.result.state_changes:
            effects.prepare()
            emit_state_changes(builder, self.result.state_changes)
        effects.push(value)
        builder.cb.return_value()

    def replacement(self, compiled: Callable[..., Any] | None, deoptimisation: Deoptimisation | None) -> CodeType:
        """The replacement code. After a graph that raises it runs the original code, unless `deoptimisation` is None."""
        cb = FrameCode(self.model, [obj for obj in self.result.guards.weakly_held if isinstance(obj, type)])
        builder = ReplacementBuilder(self.result.mutations, self.usage, cb)
        if compiled is not None:
            start, end, handler = cb.label("start"), cb.label("end"), cb.label("failed")
            cb.place(start)
            emit_graph_call(builder, compiled, self.result.graph.input_sources)
            cb.place(end)
            if deoptimisation is not None:
                cb.protect(start, end, handler, depth=0)
            self._give_back(builder)
            if deoptimisation is not None:
                cb.place(handler)
                emit_deoptimisation(cb, self.code, deoptimisation)
        else:
            self._give_back(builder)
        return cb.finish()


def finish_entry(
    plan: FramePlan,
    compiled: Callable[..., Any] | None,
    payload: Payload,
    *,
    raise_internal_errors: bool = False,
    on_other_path: Callable[[type[Exception]], None] = lambda raises: None,
    warns: bool = True,
) -> Any:
    """The `treadle_frame.Entry` of a finished compile.

    on_other_path: called after a call that took another path than the graph takes for granted.
    warns: there is a warning, once, after a call in which an assert fails that the program does not need.
    raise_internal_errors: a call raises InternalError when the graph raises where the program does not.
    Raises Unsupported when the frame handles exceptions but cannot be deoptimised.
    """
    result, gm = plan.result, payload.graph_module
    deoptimisation = None
    has_asserts = False
    if compiled is not None and gm is not None:
        if why_not_deoptimise(gm) is None or raises_before_writing(compiled):
            deoptimisation = Deoptimisation(
                plan.code.co_qualname,
                has_handlers=result.protected,
                raise_internal_errors=raise_internal_errors,
                on_other_path=on_other_path,
                warns=warns,
            )
        asserts = asserts_of(gm)
        has_asserts = bool(asserts)
        compiled = restoring_switches(compiled, gm)
        compiled = run_without_devices(compiled) if devices_outside() else compiled
        draws = draws_random_numbers(gm)
        if deoptimisation is not None and (asserts or draws):
            compiled = raising_typed(compiled, asserts, draws)
        elif asserts:
            compiled = raising_as_program(compiled, asserts)
    if compiled is not None and deoptimisation is None and result.protected:
        raise Unsupported("write-under-handler", f"{plan.code.co_qualname}")
    replacement = plan.replacement(compiled, deoptimisation)
    program = payload.take_guards(result)
    if payload.dynamic is not None:
        program = size_program(program.checks, payload.dynamic)
    fast_path = None
    if compiled is not None and not result.protected and not has_asserts:
        fast_path = _fast_path(plan, compiled, None if deoptimisation is None else may_run_again)
    if fast_path is None:
        return treadle_frame.Entry(replacement, program, payload)
    return treadle_frame.Entry(replacement, program, payload, fast_path=fast_path)


def program_of_original(program: Any, payload: Payload, decides: bool) -> treadle_frame.GuardProgram:
    """The guard of an entry that runs the original code, made of the guard that its trace asked for.

    Python runs the program right in any case. The guard tells where a compile may have another result. Python functions cost too much for
    that: there are none but those about sizes, and with `decides` those about numbers of tensors, which choose between paths. Nor are
    random numbers foreseen for it. What seldom changes is not asked for either: classes, functions of modules, and which tensors are one.
    """
    sizes = payload.dynamic

    def is_kept(check: treadle_frame.Check) -> bool:
        others = check.arg[1] if check.op == "call_many" else check.arg if check.op == "distinct_objects" else ()
        if foresees(check.path) or foresees(others):
            return False
        if check.op in _SELDOM_FAILING or check.path[0][0] in _SELDOM_CHANGING:
            return False
        if check.op not in ("call", "call_many") or (sizes is not None and sizes.is_guarded_by(check)):
            return True
        return decides and check.op == "call_many" and isinstance(check.arg[0], Decided)

    if not decides:
        payload.decided = Decided()
    kept = list(filter(is_kept, program.checks))
    if payload.grad_mode is not None:
        text = f"torch.is_grad_enabled() is {payload.grad_mode}"
        kept.append(treadle_frame.Check((("const", None),), "call", _GRAD_MODE[payload.grad_mode], text))
    return treadle_frame.GuardProgram(kept)


_SELDOM_FAILING = frozenset({"type_lookup", "distinct_objects", "lacks_key"})
# Roots of paths that do not begin at what a call is given: constants of the trace, such as modules and classes, and builtin functions.
_SELDOM_CHANGING = frozenset({"const", "referent", "builtin"})
# Also asked where a function is left to Python: what does not pay in training does in inference.
_GRAD_MODE: dict[bool, Callable[[Any], bool]] = {
    True: lambda _: torch.is_grad_enabled(),
    False: lambda _: not torch.is_grad_enabled(),
}


def foresees(part: Any) -> bool:
    """Whether a path, or one of several, leads to a random number that is foreseen."""
    return hasattr(part, "cost") or (isinstance(part, (tuple, list)) and any(map(foresees, part)))


def _fast_path(plan: FramePlan, compiled: Callable[..., Any], may_retry: Callable[[BaseException], bool] | None) -> Any:
    """`(compiled, argument names, unpack[, may_retry])` when the frame does nothing but `return compiled(*arguments)[0]`, else None.

    may_retry: asked when the graph raises whether the replacement code runs.
    """
    result = plan.result
    if plan.leaving is not None or result.mutations or result.state_changes or len(plan.outputs) != 1:
        return None
    value = settled(result.value) if result.value is not None else None
    if value is None or value.source is not None or getattr(value, "known_node", None) is not plan.outputs[0]:
        return None
    slots = plan.model.arguments
    names = [source.path[0][1] for source in result.graph.input_sources if len(source.path) == 1]
    if len(names) != len(result.graph.input_sources) or any(name not in slots for name in names):
        return None
    return (compiled, tuple(names), True, *filter(None, [may_retry]))


def with_accepted_sizes(entry: Any) -> Any:
    """The same entry with a guard program for the sizes of 1 that are accepted by now."""
    program = size_program(entry.guard.checks, entry.payload.dynamic)
    return treadle_frame.Entry(entry.code, program, entry.payload, fast_path=entry.fast_path)
