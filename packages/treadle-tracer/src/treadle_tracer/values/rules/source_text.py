"""Rules of `compile`, `eval` and `exec`: source text that is known is compiled now, and its code is traced in place."""

from __future__ import annotations
import __future__

import builtins
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.bytecode import read
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def _compile(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) != 3 or not all(arg.is_constant() for arg in args):
        raise Unsupported("call", "compile() with other arguments")
    source, file, mode = (arg.constant() for arg in args)
    if type(source) is not str:
        raise Unsupported("call", "compile() of no text")
    return Constant(_code(tx, source, file, mode))


def _code(tx: TraceContext, source: str, file: str, mode: str) -> types.CodeType:
    """The code of a text, with the `from __future__` imports of the function that is traced."""
    frame: Any = tx.frames[-1]
    flags = frame.function_code.co_flags & _FUTURE
    try:
        return compile(source, file, mode, flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise Unsupported("call", f"{mode} of a text that cannot be compiled: {error}") from None


def _runs(mode: str) -> Apply:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or not 1 <= len(args) <= 2 or not args[0].is_constant():
            raise Unsupported("call", f"{mode}() with these arguments")
        source = args[0].constant()
        code = source if isinstance(source, types.CodeType) else None
        if type(source) is str:
            code = _code(tx, source.lstrip(" \t") if mode == "eval" else source, "<string>", mode)
        if code is None or code.co_freevars:
            raise Unsupported("call", f"{mode}() of {args[0].describe()}")
        given = args[1] if len(args) > 1 and not (args[1].is_constant() and args[1].constant() is None) else None
        result = _run_here(tx, code) if given is None else _run_in(tx, code, given)
        return result if mode == "eval" else NONE

    return apply


def _run_here(tx: TraceContext, code: types.CodeType) -> Value:
    """The code with the variables of the calling frame."""
    frame: Any = tx.frames[-1]
    namespace = tx.wrap_known(locals).call(tx, [], {})
    function = FunctionValue(code, frame.globals)
    function.in_root = frame.globals is tx.frames[0].globals  # type: ignore[attr-defined]
    return tx.run_body(function, namespace)


_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "MAKE_FUNCTION", "IMPORT_NAME"})


def _run_in(tx: TraceContext, code: types.CodeType, namespace: Value) -> Value:
    """The code with a dict of the program as its globals, in which it may not make functions."""
    if not isinstance(namespace, DictValue) or namespace.cls is not dict or namespace.source is not None:
        raise Unsupported("call", "eval() or exec() in a namespace from outside")
    if any(instruction.opname in _OF_GLOBALS for instruction in read(code).instructions):
        raise Unsupported("call", "eval() or exec() of code with globals of its own")
    scope = {"__builtins__": vars(builtins)}
    tx.guards.leave_out(scope)
    if not namespace.contains(tx, Constant("__builtins__")):
        namespace.set_item(tx, Constant("__builtins__"), tx.wrap_known(vars(builtins)))
    return tx.run_body(FunctionValue(code, scope), namespace)


RULES = (
    Rule(compile, _compile, Effect.READS_STATE),
    Rule(eval, _runs("eval"), Effect.WRITES_STATE),
    Rule(exec, _runs("exec"), Effect.WRITES_STATE),
)
