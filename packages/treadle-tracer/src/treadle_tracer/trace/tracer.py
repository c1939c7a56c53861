"""The context of one trace: its graph, guards and mutations, the values of outside objects, and the place in the program."""

from __future__ import annotations

import builtins
import collections
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import Frame as SizeFrame
from treadle_shapes.torch import fake_calls, fake_mode, outside_transforms
from treadle_tracer.class_facts import own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.options import TracerOptions
from treadle_tracer.output.graph import GraphBuilder
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.output.mutations import DELETED, Mutations
from treadle_tracer.output.outside_devices import devices_outside
from treadle_tracer.output.write_separation import WriteSeparation
from treadle_tracer.source import (
    BuiltinSource,
    ConstSource,
    DictItemSource,
    GlobalSource,
    GlobalsSource,
    InstanceDictSource,
    Source,
    is_passed,
)
from treadle_tracer.trace.patience import Patience, takes_long
from treadle_tracer.trace.traceable import why_not_traceable
from treadle_tracer.values import (
    aliases,
    array_functions,
    array_methods,
    array_warnings,
    builtin_methods,
    class_writes,
    exceptions,
    mode_calls,
    module_attributes,
    objects,
    originals,
    outside_decisions,
    protocol,
    random_generators,
    symbolic_elements,
    tensor_methods,
    torch_calls,
    unbacked,
    weak_references,
)
from treadle_tracer.values import construct as construction
from treadle_tracer.values import wrap as wrapping
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING
from treadle_tracer.values.constants import is_constant_object, is_trusted_name
from treadle_tracer.values.entered_contexts import EnteredContexts
from treadle_tracer.values.exceptions import ExceptionValue
from treadle_tracer.values.function_modes import FunctionModes
from treadle_tracer.values.functions import FunctionValue, ModuleObject
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.iteration import FixedIterator, SequenceIterator
from treadle_tracer.values.joined import JoinedTensor
from treadle_tracer.values.rules import function_transforms
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.symbols import Symbols
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value
from treadle_tracer.values.weak_references import WeakReference

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.views import Speculates, TracedFrame


_MAX_DEPTH = 900  # `room.ROOM` has frames of the tracer for as many traced ones


def _weakly(where: Callable[[], tuple[SizeFrame, ...]]) -> Callable[[], tuple[SizeFrame, ...]]:
    """`where` without a reference to its tracer. PyTorch's cache of fake tensors keeps sizes alive, and sizes their environment."""
    method = weakref.WeakMethod(where)

    def here() -> tuple[SizeFrame, ...]:
        bound = method()
        return () if bound is None else bound()

    return here


def _weakly_asked(tracer: Tracer) -> Callable[[Any], bool | None]:
    """What decides conditions on numbers that were read from tensors, without a reference to its tracer: see `_weakly`."""
    found = weakref.ref(tracer)

    def decide(condition: Any) -> bool | None:
        tx = found()
        if tx is None or not tx.frames:  # nobody runs the program any more: a backend asks
            return None
        return outside_decisions.truth_of_condition(tx, condition)

    return decide


class Tracer:
    """One trace of one frame: the `TraceContext` that values and rules receive as `tx`."""

    def __init__(
        self,
        inline: Callable[[Tracer, FunctionValue, list[Value], dict[str, Value]], Value],
        run_body: Callable[[Tracer, FunctionValue, Value], Value],
        dynamic: Mapping[Source, Mapping[int, int]] | None = None,
        options: TracerOptions | None = None,
        caller_handles: bool = False,
        stays_out: Mapping[int, str] | None = None,
    ):
        self.contexts = EnteredContexts(stays_out)
        self.modes = FunctionModes([mode_calls.OutsideDevice(device) for device in devices_outside()])
        self.began_in_inference_mode = torch.is_inference_mode_enabled()
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.mutations = Mutations()
        self.fake_mode = fake_mode()
        self.fake_calls = fake_calls(self.fake_mode)
        self.symbols = Symbols(
            self.fake_mode, {} if dynamic is None else dynamic, options or TracerOptions(), _weakly(self.where)
        )
        self.wrapped: dict[int, tuple[Any, Value]] = {}
        self.hashed: dict[int, Any] = {}
        self.hashed_numbers: list[Any] = []
        self.hashes_addresses = False
        self.lookup_cache: dict[tuple[type, str, type | None], tuple[Any, type | None]] = {}
        self.class_writes: dict[tuple[int, str], Any] = {}
        self.global_cache: dict[tuple[int, str], Value] = {}
        self.scopes: dict[int, dict[str, Any]] = {}
        self.frames: list[TracedFrame] = []
        self.generators: list[GeneratorValue] = []
        self.inlined: dict[int, types.CodeType] = {}
        self.root_globals: dict[str, Any] | None = None
        self.exception: Value | None = None
        self.context: Value | None = None
        self.has_own_filters = False
        self.module_calls: dict[int, int] = {}
        self.weak_references: list[WeakReference] = []
        self.numpy_flags: list[array_warnings.Flag] = []
        self.caller_handles = caller_handles
        self.unrolls_outside_iterators = True
        self.protected = 0
        self.was_told_of_compiling = False
        self.tells_of_compiling = (options or TracerOptions()).tells_of_compiling
        self.was_protected = False
        self.step = 0  # of the next instruction, counted over all frames
        self.break_at: int | None = None
        self.patience = Patience()
        self.broken_frames: tuple[Any, ...] = ()
        self.handled_at_break: Value | None = None
        self.caught: list[Value] = []
        self.instance_dicts: dict[int, Value] = {}
        self.raised_while: dict[int, tuple[Value, Value | None]] = {}
        self.tracebacks: dict[int, tuple[Value, object]] = {}
        self.autocast_nesting = 0
        self.overrides_off = 0
        self.dispatches = 0
        self.dispatched: list[Any] = []
        self.grad_mode_uses = 0
        self.differentiated: list[Any] = []
        self.speculation: Speculates | None = None
        self.vmap_levels: list[Any] = []
        self.failed_joins: collections.Counter[tuple[int, int]] = collections.Counter()
        self.deleted = DELETED
        self.separates = (options or TracerOptions()).separate
        if self.separates:
            self.graph.separation = WriteSeparation(self.is_protected)
        self._inline, self._run_body = inline, run_body
        self._fakes: dict[int, TensorValue] = {}
        self._of_node: dict[fx.Node, list[TensorValue]] = {}  # those that a call gives, or gave when they were noted
        self._stores_globals = False
        self._trace_lines: dict[tuple[str, int, str], str] = {}
        self._states: dict[Any, tuple[Any, Any]] = {}
        self._outer_states: tuple[dict[Any, tuple[Any, Any]], ...] = ()
        self._backward_bodies = 0
        self.guards.add_global_state()
        self.symbols.oracle = _weakly_asked(self)

    def check_patience(self, step: int) -> None:
        """Raises Unsupported when the trace takes too long. Whoever wants one graph or nothing waits."""
        if self.symbols.options.fullgraph:
            self.patience.ends_at = sys.maxsize
            return
        self.patience.check(step, self.graph.calls, self.frames)

    # ---- operations that a module of values/ needs of a higher one: see TraceContext

    call_by_modes = mode_calls.call_by_modes
    handle_by_modes = mode_calls.handle_by_modes
    fold = protocol.fold
    raise_exception = protocol.raise_exception
    raise_exception_value = protocol.raise_exception_value
    raise_real = exceptions.raise_real
    same_or_equal = protocol.same_or_equal
    compare = protocol.compare
    binary_op = protocol.binary_op
    call_builtin_method = builtin_methods.call_builtin_method
    bind = objects.bind
    construct = construction.construct
    class_method = construction.method_of_class
    class_attribute = class_writes.attribute
    store_class_attribute = class_writes.store
    delete_class_attribute = class_writes.delete
    wrap = wrapping.wrap
    from_constant = wrapping.from_constant
    code_constant = wrapping.code_constant
    run_in_graph = torch_calls.run_in_graph
    tensor_method = tensor_methods.tensor_method
    tensor_item = tensor_methods.get_item
    number_of_sizes = symbolic_elements.number_of_sizes
    store_tensor_item = tensor_methods.set_item
    numpy_call = array_functions.call_function
    array_attribute = array_methods.attribute
    array_method = array_methods.method
    specialise = unbacked.specialise
    decide = unbacked.decide

    @tail_call
    def inline(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Evaluate a Python function in place."""
        if not isinstance(function, FunctionValue):
            return function.call(self, args, kwargs)
        if len(self.frames) >= _MAX_DEPTH:
            raise Unsupported("recursion", function.describe())
        if takes_long(function.code) and not self.symbols.options.fullgraph:
            raise Unsupported("long-trace", function.describe())
        if function_transforms.is_transformed(function):
            return function_transforms.call_transformed(self, function, args, kwargs)
        return self._inline(self, function, args, kwargs)

    def run_body(self, function: Value, namespace: Value) -> Value:
        """Evaluate code whose variables stand in a namespace: the body of a class, the text of an `exec` or `eval`."""
        if not isinstance(function, FunctionValue) or len(self.frames) >= _MAX_DEPTH:
            raise Unsupported("recursion", function.describe())
        return self._run_body(self, function, namespace)

    def guard_no_exception(self) -> None:
        """Rely on no caller of the compiled frame handling an exception. Raises Unsupported when one does."""
        if self.caller_handles:
            raise Unsupported("builtin-call", "a question about the exception that a caller is handling")
        text = "no caller is handling an exception"
        self.guards.add(ConstSource(None, "sys.exception()"), "call", _no_exception_is_handled, text)

    def list_iterator(self, items: list[Value]) -> Value:
        """An iterator over these items."""
        return SequenceIterator(ListValue(items))

    def fixed_iterator(self, owner: Value, items: Sequence[Any], cls: type) -> Value:
        """`iter(owner)`, of this class, of an object that has these items."""
        return FixedIterator(owner, items, cls)

    def note_break(self) -> None:
        """The trace ends here: keep the frames as they are, which are left now."""
        self.broken_frames, self.handled_at_break = tuple(self.frames), self.exception

    # ---- values of known things

    def wrap_known(self, obj: Any) -> Value:
        """The Value of an object that needs no guard of its own, because what it was found through is guarded."""
        return self.wrap(obj, ConstSource(obj))

    # ---- names

    def load_global(self, globals_: dict[str, Any], name: str) -> Value:
        """A module-level or built-in name."""
        if self._stores_globals:
            stored = self.mutations.load_global(self.globals_source(globals_), name)
            if isinstance(stored, Value):
                return stored
            if stored is not None:
                self.raise_exception(NameError, f"name {name!r} is not defined")
        key = (id(globals_), name)
        found = self.global_cache.get(key)
        if found is None:
            found = self._find_global(globals_, name)
            self.global_cache[key] = found
        return found

    def _find_global(self, globals_: dict[str, Any], name: str) -> Value:
        self.scopes[id(globals_)] = globals_
        dict_source = self.globals_source(globals_)
        if name in globals_:
            return self.wrap_name(globals_[name], GlobalSource(name, dict_source), globals_.get("__name__"))
        self.guards.add(dict_source or GlobalsSource(), "lacks_key", name)
        scope = globals_.get("__builtins__", builtins)
        scope = scope if isinstance(scope, dict) else vars(scope)
        if name not in scope:
            self.guards.add(ConstSource(scope, "builtins"), "lacks_key", name)
            self.raise_exception(NameError, f"name {name!r} is not defined")
        source = BuiltinSource(name) if dict_source is None else DictItemSource(ConstSource(scope, "builtins"), name)
        return self.wrap_name(scope[name], source, "builtins")

    def wrap_name(self, obj: Any, source: Source, module: Any) -> Value:
        """A module attribute. Of functions, classes and modules of PyTorch and the standard library it counts which object it is."""
        if is_trusted_name(module) and (isinstance(obj, _DEFINITIONS) or callable(obj)):
            self.guards.add(source, "is", obj)
            source = ConstSource(obj)
        return self.wrap(obj, source)

    def globals_source(self, globals_: dict[str, Any]) -> Source | None:
        return None if globals_ is self.root_globals else ConstSource(globals_)

    def guard_globals(self, source: Source, globals_: dict[str, Any]) -> None:
        """Rely on a function's globals being this dict."""
        if globals_ is self.root_globals:
            self.guards.add(source, "same_object", GlobalsSource())
        else:
            self.guards.add(source, "is", globals_)

    def store_global(self, globals_: dict[str, Any], name: str, value: Any) -> None:
        self._stores_globals = True
        self.scopes[id(globals_)] = globals_
        self.mutations.store_global(self.globals_source(globals_), name, value)

    def module_attr(self, module: ModuleObject, name: str) -> Value:
        scope = vars(module.obj)
        if self._stores_globals:
            stored = self.mutations.load_global(self.globals_source(scope), name)
            if isinstance(stored, Value):
                return stored
        return module_attributes.attribute_of_python_module(self, module.obj, name)

    # ---- tensors

    def wrap_tensor(self, obj: torch.Tensor, source: Source, static: bool = False) -> Value:
        why_not = why_not_traceable(obj)
        if why_not is not None:
            raise Unsupported("tensor-kind", f"{source.text} is {why_not}")
        originals.require_plain_tensors(self, type(obj))
        static = static or (isinstance(obj, torch.nn.Parameter) and not is_passed(source))
        static = static and not self.symbols.dynamic.is_input(source)
        dims = () if static else self.symbols.dynamic_dims(source, obj)
        free = () if static else self.symbols.free_strides(source, obj)
        name = self.symbols.name_of(source) if dims or free else None
        self.guards.add_tensor(source, obj, dims, by_identity=static, free_strides=free, name=name)
        with outside_transforms(), self.contexts.while_making_fakes():
            fake = self.symbols.fake_like(source, obj, dims, free)
        made = TensorValue(None, fake, obj, source, static)
        self._fakes[id(fake)] = made
        return made

    def new_tensor(self, node: fx.Node, fake: torch.Tensor) -> TensorValue:
        made = TensorValue(node, fake)
        self._fakes[id(fake)] = made
        self._of_node.setdefault(node, []).append(made)
        return made

    def note_node(self, value: TensorValue) -> None:
        """The tensor's node is another one from here on."""
        if value.known_node is not None:
            self._of_node.setdefault(value.known_node, []).append(value)

    def adopt(self, value: TensorValue) -> None:
        """Let the tensor's fake stand for this Value from here on."""
        self._fakes[id(value.fake)] = value
        self.note_node(value)

    def tensor_of_fake(self, fake: torch.Tensor) -> TensorValue | None:
        found = self._fakes.get(id(fake))
        return found if found is not None and found.fake is fake else None

    def known_tensors(self) -> Iterable[TensorValue]:
        return list(self._fakes.values())

    def input_node(self, value: TensorValue) -> fx.Node:
        assert value.source is not None
        if value.static:
            return self.graph.attribute(value.source, value.obj, value.fake)  # type: ignore[arg-type]
        self.note_protection()
        return self.graph.placeholder(value.source, value.obj, value.fake)

    def note_mutation(self, value: TensorValue) -> None:
        """A graph call has written into a known tensor. Calls stay in order, so there is nothing to record."""
        if isinstance(value, JoinedTensor):
            value.settle()

    def note_protection(self) -> None:
        """Note that the graph is written to where the traced program may catch what the graph raises."""
        self.was_protected = self.was_protected or self.is_protected()

    def is_protected(self) -> bool:
        """Whether the traced program may catch what a call at the present place raises."""
        return self.protected > 0 or self.frames[-1].is_protected()

    # ---- dynamic numbers

    def decide_condition(self, condition: Any) -> bool:
        """The truth of a condition on sizes: recorded as a guard, or on a speculated path what follows from its assumptions."""
        return self.symbols.env.decide(condition) if self.speculation is None else self.speculation.decide(condition)

    def number(self, value: Any, node: fx.Node | None) -> Value:
        if isinstance(value, (int, float, bool)):
            return Constant(value)
        return self.symbols.value(self, value, node)

    def tensor_at(self, source: Source) -> TensorValue:
        """The outside tensor at `source`, which the trace has met."""
        return next(v for v in self._fakes.values() if v.source == source)

    def close_writes(self) -> None:
        """At the end of the program: settle what it has written to outside objects."""
        array_warnings.write_checks(self)
        self.forget_restored()
        random_generators.write_states(self)
        aliases.guard_changed_objects(self)
        aliases.guard_hashed_objects(self)

    def forget_restored(self) -> None:
        """Drop attribute stores that have restored the constant of before the trace, and guard that constant."""
        for owner, name, value in list(self.mutations.attr_stores()):
            obj = getattr(owner, "obj", None)
            if obj is None or owner.source is None or not isinstance(value, Constant) or isinstance(owner, TensorValue):
                continue
            before = (own_dict(obj) or {}).get(name, MISSING)
            if is_constant_object(before) and before is value.obj:
                # A symbolic number may differ in the next call, and then the store counts.
                if not isinstance(self.wrap(before, InstanceDictSource(owner.source, name)), SymbolicValue):
                    self.mutations.forget_attr(owner, name)

    def note_raised(self, exception: Value, again: bool) -> None:
        """An exception of the program passes a frame: the first time, it has got the one being handled as its context.

        again: it keeps the traceback that it has
        """
        context = None if self.exception is exception else self.exception
        self.raised_while.setdefault(id(exception), (exception, context))
        if not again:
            self.tracebacks[id(exception)] = (exception, object())
            if isinstance(exception, ExceptionValue) and exception.raised_at < 0:
                exception.raised_at = getattr(self.frames[0], "at", -1)

    def is_as_before(self, state: Any) -> bool:
        """Whether the program's writes are those of a snapshot of `mutations`, attributes that hold their constants again aside."""
        attrs, containers, *others = self.mutations.snapshot()
        if others != list(state[2:]) or containers or state[1]:
            return False
        written = [(key, name, value) for key, names in attrs.items() for name, value in names.items()]
        if any(name not in attrs.get(key, {}) for key, names in state[0].items() for name in names):
            return False
        return all(
            state[0].get(key, {}).get(name) is value or self._holds(self.mutations.owner(key), name, value)
            for key, name, value in written
        )

    def _holds(self, owner: Any, name: str, value: Any) -> bool:
        """Whether the attribute of the real object is this constant."""
        if getattr(owner, "obj", None) is None:
            return owner.source is None  # made in the trace
        before = (own_dict(owner.obj) or {}).get(name, MISSING)
        return isinstance(value, Constant) and is_constant_object(before) and before is value.obj

    # ---- torch's global state

    def change_state(self, setter: Any, keys: tuple[Any, ...], before: Any, value: Any) -> None:
        first = self._states.get((setter, keys), (before, None))[0]
        setter(*keys, value)
        self._states[setter, keys] = (first, value)
        self.graph.call("call_function", setter, (*keys, value), {}, None, self.stack_trace())

    def note_state(self, setter: Any, before: Any, value: Any) -> None:
        """Something else than the setter has changed this state."""
        self._states[setter, ()] = (self._states.get((setter, ()), (before, None))[0], value)

    def states_set(self) -> dict[Any, Any]:
        """The state that the trace has set, by setter and keys."""
        return {key: now for key, (first, now) in self._states.items() if now != first}

    @property
    def runs_forward(self) -> bool:
        """Whether the code at hand is part of no backward pass and of no function that a transform calls."""
        return not (self._backward_bodies or self._outer_states)

    @contextmanager
    def as_in_backward(self, grad_mode: bool) -> Iterator[None]:
        """Inside, code is traced that a backward pass will run, in this grad mode and without autocast.

        What it sets does not count for the rest of the trace.
        """
        outer, states = torch.is_grad_enabled(), dict(self._states)
        cast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
        for device in cast:
            torch.set_autocast_enabled(device, False)
        torch._C._set_grad_enabled(grad_mode)
        self._backward_bodies += 1
        try:
            yield
        finally:
            self._backward_bodies -= 1
            for (setter, keys), (first, now) in self._states.items():
                before = states.get((setter, keys), (first, first))[1]
                if now != before:
                    setter(*keys, before)
            for device in cast:
                torch.set_autocast_enabled(device, True)
            torch._C._set_grad_enabled(outer)
            self._states = states

    @contextmanager
    def as_transformed(self) -> Iterator[None]:
        """Inside, a function is traced that a transform of `torch.func` calls, in the state that the transform has set.

        Raises Unsupported where the function does not restore what it sets.
        """
        outer, self._outer_states, self._states = self._outer_states, (*self._outer_states, self._states), {}
        try:
            yield
            if self.state_changes():
                raise Unsupported("function-transform", "the function that a transform calls sets state of PyTorch")
        except BaseException:
            self.abandon()
            raise
        finally:
            self._states, self._outer_states = self._outer_states[-1], outer

    def forget_tensors(self, gone: set[fx.Node]) -> None:
        """The nodes of these tensors have been taken out of the graph: nothing can use the tensors any more."""
        for value in [value for node in gone for value in self._of_node.pop(node, ())]:
            if value.known_node in gone:
                value.leave_graph()
                if self._fakes.get(id(value.fake)) is value:
                    del self._fakes[id(value.fake)]

    @property
    def runs_in_order(self) -> bool:
        """Whether the code at hand runs once, where the program has it, in the state of PyTorch at entry, grad mode aside."""
        others = [setter for setter, _ in self._states if setter is not torch._C._set_grad_enabled]
        return not (self._backward_bodies or self._outer_states or others)

    def check_weak_container(self, owner: Value) -> None:
        weak_references.check_container(self, owner)

    def has_set_state(self, setter: Any, keys: tuple[Any, ...]) -> bool:
        """Whether the trace has called this setter of torch's state, and has so read what was before."""
        return any((setter, keys) in states for states in (*self._outer_states, self._states))

    def state_changes(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """The setter calls that lead from the state before the frame to the present state of the trace."""
        return [(setter, (*keys, now)) for (setter, keys), (first, now) in self._states.items() if now != first]

    def close_state(self) -> None:
        """Restore torch's state, now and at the end of the graph."""
        for (setter, keys), (first, now) in reversed(self._states.items()):
            if now != first:
                setter(*keys, first)
                self.graph.call("call_function", setter, (*keys, first), {}, None, "")

    def abandon(self) -> None:
        """Restore torch's state after a trace that is given up."""
        self.contexts.abandon()
        for (setter, keys), (first, _) in reversed(self._states.items()):
            setter(*keys, first)

    def leave_frames(self) -> None:
        """Refer to no frame any more, those of generators included: frames refer to the trace."""
        self.frames, self.generators, self.broken_frames = [], [], ()

    def forget(self) -> None:
        """Refer to nothing that the trace has seen. Some values refer to the trace, and a program can tell when an object dies: it must not
        wait for the garbage collector."""
        vars(self).clear()
        self.frames = []

    # ---- where the traced program is

    def user_stack(self) -> tuple[tuple[str, int, str], ...]:
        return tuple(frame.position() for frame in self.frames)

    def where(self) -> tuple[SizeFrame, ...]:
        """The traced program's stack for messages about sizes, innermost first."""
        return tuple(SizeFrame(*position) for position in reversed(self.user_stack()))

    def stack_trace(self) -> str:
        """The traced program's stack as Python prints it, innermost call last."""
        self.note_protection()
        lines = self._trace_lines
        parts = []
        for frame in self.frames:
            position = frame.position()
            text = lines.get(position)
            if text is None:
                file, line, name = position
                source = linecache.getline(file, line).strip()
                text = lines[position] = f'  File "{file}", line {line}, in {name}\n    {source}\n'
            parts.append(text)
        return "".join(parts)


def _no_exception_is_handled(_: Any) -> bool:
    return sys.exception() is None


_DEFINITIONS = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
