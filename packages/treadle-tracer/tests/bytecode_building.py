"""Whole functions made with the CodeBuilder: shapes, and operations that replacement code does not need."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence

from treadle_tracer.bytecode import CodeBuilder, CodeModel
from treadle_tracer.bytecode.opcodes import MINOR, NULL_AFTER_CALLABLE
from treadle_tracer.bytecode.read import header


def sketch(code: types.CodeType, *, name: str | None = None, qualname: str | None = None) -> CodeModel:
    """A model without instructions that has the signature, variables and place in the source of ``code``.

    Constants are dropped except the first one (where functions keep their docstring), names are dropped.
    """
    model = header(code)
    return model.replace(
        name=model.name if name is None else name,
        qualname=model.qualname if qualname is None else qualname,
        consts=model.consts[:1] if model.consts and isinstance(model.consts[0], str) else (None,),
        names=(),
    )


def blank(
    name: str,
    parameters: Sequence[str] = (),
    *,
    cellvars: Sequence[str] = (),
    freevars: Sequence[str] = (),
    filename: str = "<treadle>",
    firstlineno: int = 1,
) -> CodeModel:
    """A model without instructions of a plain function with the given positional parameters."""
    return CodeModel(
        instructions=(),
        exceptions=(),
        name=name,
        qualname=name,
        filename=filename,
        firstlineno=firstlineno,
        flags=inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS | (inspect.CO_NESTED if freevars else 0),
        argcount=len(parameters),
        posonlyargcount=0,
        kwonlyargcount=0,
        varnames=tuple(parameters),
        cellvars=tuple(cellvars),
        freevars=tuple(freevars),
        consts=(None,),
        names=(),
    )


class FullBuilder(CodeBuilder):
    """A CodeBuilder with a method for every operation that the tests use."""

    @classmethod
    def like(cls, code: types.CodeType, *, name: str | None = None, prologue: bool = True) -> CodeBuilder:
        """A builder for code with the signature, cells and free variables of ``code``."""
        return cls(sketch(code, name=name), prologue=prologue)

    @classmethod
    def function(
        cls, name: str, parameters: Sequence[str] = (), *, cellvars: Sequence[str] = (), freevars: Sequence[str] = ()
    ) -> CodeBuilder:
        """A builder for a plain function of its own."""
        return cls(blank(name, parameters, cellvars=cellvars, freevars=freevars))

    def store_deref(self, name: str) -> None:
        self.emit("STORE_DEREF", name)

    def delete_deref(self, name: str) -> None:
        self.emit("DELETE_DEREF", name)

    def is_cell(self, name: str) -> bool:
        """Whether ``name`` lives in a cell in this function."""
        return name in self.shape.cellvars or name in self.shape.freevars

    def load_variable(self, name: str) -> None:
        """The value of a variable of this function, cell or not."""
        self.emit("LOAD_DEREF" if self.is_cell(name) else "LOAD_FAST", name)

    def store_variable(self, name: str) -> None:
        """The inverse of ``load_variable``."""
        self.emit("STORE_DEREF" if self.is_cell(name) else "STORE_FAST", name)

    def delete_attr(self, name: str) -> None:
        self.emit("DELETE_ATTR", name)

    def callable_on_top(self) -> None:
        """Make the value on top of the stack the callable of a call whose arguments follow."""
        self.push_null()
        if not NULL_AFTER_CALLABLE:
            self.swap(2)

    def load_callable_global(self, name: str) -> None:
        """A global as callable, ready for the arguments."""
        self.emit("LOAD_GLOBAL", name, arg=1)

    def load_method(self, name: str) -> None:
        """``object`` -> its method, ready for the arguments."""
        if MINOR == 11:
            self.emit("LOAD_METHOD", name)
        else:
            self.emit("LOAD_ATTR", name, arg=1)

    def call_kw(self, count: int, names: Sequence[str]) -> None:
        """Call with ``count`` positional arguments and then one value for each of ``names``."""
        if not names:
            self.call(count)
        elif MINOR >= 13:
            self.load_const(tuple(names))
            self.emit("CALL_KW", count + len(names))
        else:
            self.emit("KW_NAMES", tuple(names))
            self.call(count + len(names))

    def swap(self, depth: int) -> None:
        """Exchange the top with the value at ``depth`` (2: the next one)."""
        if depth > 1:
            self.emit("SWAP", depth)

    def build_string(self, count: int) -> None:
        self.emit("BUILD_STRING", count)

    def build_slice(self, count: int) -> None:
        """From 2 or 3 values."""
        self.emit("BUILD_SLICE", count)

    def unpack_sequence(self, count: int) -> None:
        """The first item ends on top."""
        self.emit("UNPACK_SEQUENCE", count)

    def list_append(self, depth: int = 1) -> None:
        """``value`` goes into the list ``depth`` below it."""
        self.emit("LIST_APPEND", depth)

    def store_subscr(self) -> None:
        """``value, container, key`` -> nothing."""
        self.emit("STORE_SUBSCR")

    def delete_subscr(self) -> None:
        """``container, key`` -> nothing."""
        self.emit("DELETE_SUBSCR")

    def binary_op(self, operator: str) -> None:
        """An operator by its text, ``+`` or ``+=``."""
        self.emit("BINARY_OP", operator)

    def compare_op(self, operator: str) -> None:
        self.emit("COMPARE_OP", operator)

    def contains_op(self, *, invert: bool = False) -> None:
        self.emit("CONTAINS_OP", int(invert))

    def unary_not(self) -> None:
        self._to_bool()
        self.emit("UNARY_NOT")

    def get_iter(self) -> None:
        self.emit("GET_ITER")

    def raise_(self, count: int = 1) -> None:
        """Raise the exception on the stack (1), the one with its cause above (2), or again what is handled (0)."""
        self.emit("RAISE_VARARGS", count)


def new_code_like(
    code: types.CodeType, body: Callable[[FullBuilder], None], *, name: str | None = None
) -> types.CodeType:
    """Code with signature, cells, free variables and flags of ``code``; ``body`` emits what follows the prologue."""
    builder = FullBuilder.like(code, name=name)
    body(builder)
    return builder.finish()
