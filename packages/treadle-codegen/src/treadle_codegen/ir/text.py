"""The text form of programs: printed for people and golden tests, and read back by `parse_program`.

    program inputs x outputs view(sum, [4], [1], 0)
    input x : float32 [4, 8] strides [8, 1] offset 0
    output sum : float32 [4] strides [1] offset 0
    loop loop_sum [i0:4] reduce [r0:8] origins relu, sum
      %0 = load x[8*i0 + r0] : float32
      %1 = const 0.0 : float32
      %2 = maximum %0 %1 : float32
      %3 = reduce sum %2 : float32
      %4 = store sum[i0] %3 : float32
    extern extern_mm aten.mm.out (view(x, [4, 8], [8, 1], 0), 1.5) {} -> mm out origins mm

    extern extern_nonzero aten.nonzero.default (view(x, [4], [1], 0), ) {} -> nonzero origins nonzero
      bind u0 0 0 1 'x.nonzero()'
    check check_u0 (u0 <= 3) RuntimeError 'too many'
    define define_n n = max(u0 - 1, 0)

Expressions are printed by treadle_shapes (Python syntax), those with floats inside as calls of the constructors of their
nodes (`f_` float, `i_` integer, `b_` condition). Symbols are declared by the axes, by `symbol` lines (they come with the
inputs) and by `runtime` lines (steps bind them). Constants (tensors) are not part of the text: `parse_program` takes
them beside it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from treadle_codegen.ir.loops import (
    Axis,
    Bind,
    Buffer,
    BufferKind,
    Check,
    Define,
    Extern,
    Instr,
    Load,
    Loop,
    Program,
    Step,
    Store,
    View,
    has_float,
)
from treadle_codegen.ir.ops import OPS
from treadle_shapes import expr as E
from treadle_shapes.expr import Node, Symbol, make_bool, make_fn, symbol, to_python
from treadle_shapes.floats import FloatExpr, FloatSymbol, float_fn, float_symbol

# -- printing ----------------------------------------------------------------------------------------------------------


def format_program(program: Program) -> str:
    """The text of a program; `parse_program` gives an equal one back."""
    outputs = ", ".join(_value(out) for out in program.outputs)
    lines = [f"program inputs {', '.join(program.inputs)} outputs {outputs}"]
    lines += [f"symbol {_declare(s)}" for s in program.size_symbols]
    lines += [f"runtime {_declare(s)}" for s in program.bound_symbols]
    lines += [_buffer(b) for b in program.buffers.values()]
    lines += map(format_step, program.steps)
    return "\n".join(lines) + "\n"


def format_step(step: Step) -> str:
    """The text of one step, without a final newline."""
    return _STEPS[type(step)](step)


def format_loop(loop: Loop) -> str:
    """The text of one loop, without a final newline."""
    lines = [
        f"loop {loop.name} {format_axes(loop.axes)} reduce {format_axes(loop.reduce_axes)} origins {', '.join(loop.origins)}".rstrip()
    ]
    lines += [f"  %{k} = {_instr(i)}" for k, i in enumerate(loop.body)]
    return "\n".join(lines)


def _declare(s: Any) -> str:
    return f"{s.name} {s.lower} {s.upper}" if isinstance(s, Symbol) else f"{s.name} float"


def format_axes(axes: tuple[Axis, ...]) -> str:
    """The text of axes: `[i0:4, i1:8]`."""
    return "[" + ", ".join(f"{a.symbol.name}:{format_expr(a.extent)}" for a in axes) + "]"


def format_expr(value: Any) -> str:
    """The text of an index expression, a condition or a number."""
    if not isinstance(value, Node):
        return repr(value)
    return _calls(value) if has_float(value) else to_python(value)


def _calls(value: Any) -> str:
    """An expression as calls of the constructors of its nodes, since floats inside have no operators to print."""
    if not isinstance(value, Node):
        return repr(value)
    if not has_float(value):
        return to_python(value)
    if isinstance(value, FloatSymbol):
        return value.name
    if isinstance(value, E.Sum):
        terms = [f"{c} * {_calls(m)}" for m, c in value.coefficients.items()]
        return f"({' + '.join([*terms, str(value.const)])})"
    if isinstance(value, E.Product):
        return f"({' * '.join(_calls(atom) for atom, power in value.powers.items() for _ in range(power))})"
    prefix = "f_" if isinstance(value, FloatExpr) else "b_" if isinstance(value, E.BoolExpr) else "i_"
    return f"{prefix}{value.op}({', '.join(_calls(a) for a in value.args)})"  # type: ignore[attr-defined]


def _list(values: Any) -> str:
    return "[" + ", ".join(format_expr(v) for v in values) + "]"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _buffer(b: Buffer) -> str:
    layout = f"{_list(b.shape)} strides {_list(b.strides)} offset {format_expr(b.offset)}"
    return f"{b.kind.value} {b.name} : {_dtype(b.dtype)} {layout}"


def _instr(instr: Instr) -> str:
    args = "".join(f" %{a}" for a in instr.args)
    return f"{instr.op}{_attribute(instr)}{args} : {_dtype(instr.dtype)}"


def _attribute(instr: Instr) -> str:
    attr = instr.attr
    if instr.op == "load":
        return f" {attr.buffer}[{format_expr(attr.index)}]"
    if instr.op == "store":
        return f" {attr.buffer}[{format_expr(attr.index)}]" + ("" if attr.mode is None else f" {attr.mode}")
    if instr.op == "masked_load":
        load, condition, other = attr
        return f" {load.buffer}[{format_expr(load.index)}] if {format_expr(condition)} else {other!r}"
    if instr.op in ("indirect_load", "indirect_store"):
        mode = f" {attr[3]}" if len(attr) > 3 and attr[3] is not None else ""
        return f" {attr[0]} strides {_list(attr[1])} sizes {_list(attr[2])}{mode}"
    if instr.op == "const":
        return f" {attr!r}"
    if instr.op in ("index", "scalar", "check_position"):
        return f" {format_expr(attr)}"
    return f" {attr}" if instr.op in ("reduce", "scan") else ""


def _value(value: Any) -> str:
    """An argument of an extern or an output."""
    if isinstance(value, View):
        return f"view({value.buffer}, {_list(value.shape)}, {_list(value.strides)}, {format_expr(value.offset)})"
    if isinstance(value, Node):
        return f"expr({format_expr(value)})"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(v)}, " for v in value) + ")"
    if isinstance(value, (torch.layout, torch.memory_format, torch.dtype)):
        return f"torch({str(value).removeprefix('torch.')})"
    return f"device({value})" if isinstance(value, torch.device) else repr(value)


def _extern(step: Extern) -> str:
    args = "".join(f"{_value(a)}, " for a in step.args)
    kwargs = ", ".join(f"{k}: {_value(v)}" for k, v in step.kwargs.items())
    outputs = ", ".join(name or "_" for name in step.outputs)
    out = " out" if step.out_variant else ""
    text = f"extern {step.name} {step.op} ({args}) {{{kwargs}}} -> {outputs}{out} origins {', '.join(step.origins)}".rstrip()
    binds = [f"  bind {b.symbol.name} {b.result} {b.dim} {b.factor} {b.source!r}" for b in step.binds]
    return "\n".join([text, *binds])


def _check(step: Check) -> str:
    return f"check {step.name} ({format_expr(step.condition)}) {step.error} {step.message!r}"


def _define(step: Define) -> str:
    return f"define {step.name} {step.symbol.name} = {format_expr(step.value)}"


_STEPS: dict[type, Callable[[Any], str]] = {Loop: format_loop, Extern: _extern, Check: _check, Define: _define}

# -- parsing -----------------------------------------------------------------------------------------------------------

_FUNCTIONS = {
    "min": E.minimum, "max": E.maximum, "where": E.where, "And": E.And, "Or": E.Or, "Not": E.Not,
    "Eq": E.Eq, "Ne": E.Ne, "Lt": E.Lt, "Le": E.Le, "Gt": E.Gt, "Ge": E.Ge,
}  # fmt: skip


class ParseError(ValueError):
    """The text is not that of a program; the message has the line."""


_BUILD: dict[str, Callable[..., Any]] = {
    "f": float_fn,
    "i": lambda op, *args: make_fn(op, args),
    "b": lambda op, *args: make_bool(op, args),
}


class _Names(dict[str, Any]):
    """Names in scope; `f_`, `i_` and `b_` with the name of an operation are the constructors of its nodes."""

    def __missing__(self, name: str) -> Any:
        kind, _, op = name.partition("_")
        if kind not in _BUILD or not op:
            raise KeyError(name)
        return partial(_BUILD[kind], op)


_COMPARISONS = {ast.Eq: "Eq", ast.NotEq: "Ne", ast.Lt: "Lt", ast.LtE: "Le", ast.Gt: "Gt", ast.GtE: "Ge"}


class _Symbolic(ast.NodeTransformer):
    """Python's and, or, not, comparisons and conditionals, which cannot be overloaded, as calls of functions."""

    def _call(self, name: str, args: list[ast.expr]) -> ast.Call:
        return ast.Call(ast.Name(name, ast.Load()), args, [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("And" if isinstance(node.op, ast.And) else "Or", node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("Not", [node.operand]) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return self._call("where", [node.test, node.body, node.orelse])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        parts: list[ast.expr] = [
            self._call(_COMPARISONS[type(op)], [a, b])
            for op, a, b in zip(node.ops, operands, operands[1:], strict=False)
        ]
        return parts[0] if len(parts) == 1 else self._call("And", parts)


def _evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of our own text format, with nothing but `names` in scope."""
    tree = ast.fix_missing_locations(_Symbolic().visit(ast.parse(text.strip(), mode="eval")))
    return eval(compile(tree, "<ir text>", "eval"), {"__builtins__": {}}, _Names(names))


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """The program of a text printed by `format_program`."""
    lines = iter([line for line in text.splitlines() if line.strip()])
    return _Parser(lines, dict(constants or {})).program()


class _Parser:
    def __init__(self, lines: Iterator[str], constants: dict[str, torch.Tensor]) -> None:
        self.lines = lines
        self.constants = constants
        self.sizes: dict[str, Any] = {}
        self.scope: dict[str, Any] = {}
        self.buffers: dict[str, Buffer] = {}

    def program(self) -> Program:
        header = re.fullmatch(r"program inputs (.*) outputs (.*)", next(self.lines))
        if header is None:
            raise ParseError("the first line must be 'program inputs ... outputs ...'")
        inputs = tuple(name for name in header[1].split(", ") if name)
        steps: list[Any] = []
        body: list[Instr] = []
        runtime: set[str] = set()
        for line in self.lines:
            word = line.split()[0]
            if word == "bind":
                steps[-1] = replace(steps[-1], binds=(*steps[-1].binds, self.bind(line)))
            elif line.startswith("  "):
                body.append(self.instr(line))
                steps[-1] = Loop(**{**_fields(steps[-1]), "body": tuple(body)})
            elif word == "loop":
                body = []
                steps.append(self.loop(line))
            elif word == "extern":
                steps.append(self.extern(line))
            elif word in ("check", "define"):
                self.scope = dict(self.sizes)
                steps.append(self.check(line) if word == "check" else self.define(line))
            elif word in ("symbol", "runtime"):
                name = self.declare(line)
                runtime |= {name} if word == "runtime" else set()
            else:
                self.buffer(line)
        outputs = self.values(f"({header[2]},)" if header[2] else "()")
        symbols = tuple(s for name, s in self.sizes.items() if name not in runtime)
        return Program(self.buffers, inputs, outputs, steps, symbols, self.constants)

    def declare(self, line: str) -> str:
        _, name, *ends = line.split()
        ranged = ends != ["float"]
        self.sizes[name] = (
            symbol(name, *(None if b == "None" else int(b) for b in ends)) if ranged else float_symbol(name)
        )
        self.scope = dict(self.sizes)
        return name

    def bind(self, line: str) -> Bind:
        m = re.fullmatch(r"  bind (\S+) (\d+) (\w+) (\d+) (.*)", line)
        if m is None:
            raise ParseError(f"not a bind: {line}")
        dim = None if m[3] == "None" else int(m[3])
        return Bind(self.sizes[m[1]], int(m[2]), dim, int(m[4]), ast.literal_eval(m[5]))

    def check(self, line: str) -> Check:
        m = re.fullmatch(r"check (\S+) \((.*)\) (\w+) ('.*'|\".*\")", line)
        if m is None:
            raise ParseError(f"not a check: {line}")
        return Check(m[1], self.expr(m[2]), ast.literal_eval(m[4]), m[3])

    def define(self, line: str) -> Define:
        m = re.fullmatch(r"define (\S+) (\S+) = (.*)", line)
        if m is None:
            raise ParseError(f"not a definition: {line}")
        return Define(m[1], self.sizes[m[2]], self.expr(m[3]))

    def expr(self, text: str) -> Any:
        return _evaluate(text, {**_FUNCTIONS, **self.scope})

    def buffer(self, line: str) -> None:
        m = re.fullmatch(r"(\w+) (\S+) : (\w+) (\[.*\]) strides (\[.*\]) offset (.*)", line)
        if m is None:
            raise ParseError(f"not a buffer: {line}")
        kind = BufferKind(m[1])
        shape, strides = tuple(self.expr(m[4])), tuple(self.expr(m[5]))
        self.buffers[m[2]] = Buffer(m[2], getattr(torch, m[3]), shape, strides, kind, self.expr(m[6]))

    def axes(self, text: str) -> tuple[Axis, ...]:
        axes = []
        for part in re.split(r", (?=[a-z]\d+:)", text) if text else ():
            name, extent = part.split(":")
            size = self.expr(extent)
            s = symbol(name, 0, max(size - 1, 0) if isinstance(size, int) else None)
            self.scope[name] = s
            axes.append(Axis(s, size))
        return tuple(axes)

    def loop(self, line: str) -> Loop:
        m = re.fullmatch(r"loop (\S+) \[(.*)\] reduce \[(.*)\] origins ?(.*)", line)
        if m is None:
            raise ParseError(f"not a loop: {line}")
        self.scope = dict(self.sizes)
        return Loop(m[1], self.axes(m[2]), self.axes(m[3]), (), tuple(name for name in m[4].split(", ") if name))

    def instr(self, line: str) -> Instr:
        m = re.fullmatch(r"  %\d+ = (\w+)(.*?)((?: %\d+)*) : (\w+)", line)
        if m is None or m[1] not in OPS:
            raise ParseError(f"not an instruction: {line}")
        op, text, dtype = m[1], m[2].strip(), getattr(torch, m[4])
        args = tuple(int(a[1:]) for a in m[3].split())
        return Instr(op, args, dtype, self.attribute(op, text, dtype))

    def attribute(self, op: str, text: str, dtype: torch.dtype) -> Any:
        if op == "cast":
            return dtype
        if op == "scalar":
            return self.expr(text)
        if op in ("const", "index", "check_position"):
            return {"inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}.get(text) if text.strip("-") in (
                "inf", "nan") else self.expr(text)  # fmt: skip
        if op in ("reduce", "scan"):
            return text
        if op in ("load", "store"):
            m = re.fullmatch(r"(\S+?)\[(.*)\]( \w+)?", text)
            assert m is not None, text
            index = self.expr(m[2])
            return Load(m[1], index) if op == "load" else Store(m[1], index, m[3].strip() if m[3] else None)
        if op == "masked_load":
            m = re.fullmatch(r"(\S+?)\[(.*)\] if (.*) else (\S+)", text)
            assert m is not None, text
            return Load(m[1], self.expr(m[2])), self.expr(m[3]), self.attribute("const", m[4], dtype)
        if op in ("indirect_load", "indirect_store"):
            m = re.fullmatch(r"(\S+) strides (\[.*\]) sizes (\[.*?\])( \w+)?", text)
            assert m is not None, text
            triple = (m[1], tuple(self.expr(m[2])), tuple(self.expr(m[3])))
            return triple if m[4] is None else (*triple, m[4].strip())
        return None

    def values(self, text: str) -> Any:
        names = {
            "view": lambda buffer, shape, strides, offset: View(buffer, tuple(shape), tuple(strides), offset),
            "expr": lambda value: value,
            "torch": lambda name: getattr(torch, name),
            "device": torch.device,
            "inf": float("inf"),
            "nan": float("nan"),
        }
        text = re.sub(r"\b(torch|device)\(([\w:]+)\)", r"\1('\2')", text)
        text = re.sub(r"\bview\((\w+)", r"view('\1'", text)
        return _evaluate(text, {**_FUNCTIONS, **self.sizes, **names})

    def extern(self, line: str) -> Extern:
        m = re.fullmatch(r"extern (\S+) (\S+) (\(.*\)) \{(.*)\} -> (.*?)( out)? origins ?(.*)", line)
        if m is None:
            raise ParseError(f"not an extern call: {line}")
        self.scope = dict(self.sizes)
        namespace, name, overload = m[2].split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        kwargs = self.values("{" + re.sub(r"(^|, )(\w+): ", r"\1'\2': ", m[4]) + "}")
        outputs = tuple("" if name == "_" else name for name in m[5].split(", "))
        origins = tuple(name for name in m[7].split(", ") if name)
        return Extern(m[1], op, self.values(m[3]), kwargs, outputs, m[6] is not None, origins)


def _fields(loop: Loop) -> dict[str, Any]:
    return {name: getattr(loop, name) for name in ("name", "axes", "reduce_axes", "origins")}
