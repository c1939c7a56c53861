"""Random Python functions, for tests that run code before and after it was taken apart.

``programs()`` draws the source of ``def f(a, b, log): ...``. Every program ends soon: loops are bounded, and what goes into
a variable is cut to size first. It may raise.
"""

from __future__ import annotations

import types
import warnings

import bytecode_subjects
from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d")
ERRORS = ("ZeroDivisionError", "TypeError", "KeyError", "NameError", "Exception")

atoms = st.sampled_from((*NAMES, "1", "0", "-2", "3.5", "True", "None", "'s'", "log[:1]", "(1, 2)"))
OPERATORS = ("+", "-", "*", "//", "%", "<", "==", "and", "or", "in", "is not")


def _operations(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda x: f"(not {x})"),
        inner.map(lambda x: f"(-{x})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.lists(inner, max_size=3).map(lambda xs: f"[{', '.join(xs)}]"),
        st.tuples(inner, inner).map(lambda t: f"{{'k': {t[0]}, **dict(z={t[1]})}}"),
        st.tuples(inner, inner).map(lambda t: f"dict(x={t[0]}, y={t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"{t[0]}[{t[1]}]"),
        st.sampled_from(NAMES).map(lambda x: f"f'<{{{x}!r:>3}}>'"),
        st.tuples(inner, st.sampled_from(NAMES)).map(lambda t: f"[{t[0]} for {t[1]} in range(2)]"),
        st.tuples(inner, inner).map(lambda t: f"(lambda: ({t[0]}, {t[1]}))()"),
        inner.map(lambda x: f"str({x}).upper()"),
    )


expressions = st.recursive(atoms, _operations, max_leaves=3)
Lines = list[str]


def _indented(lines: Lines) -> Lines:
    return ["    " + line for line in lines]


@st.composite
def _simple(draw: st.DrawFn) -> Lines:
    value, name = draw(expressions), draw(st.sampled_from(NAMES))
    other = draw(st.sampled_from(NAMES))
    form = draw(
        st.sampled_from(
            (
                f"{name} = clip({value})",
                f"{name} -= {value}",
                f"{name} += 1.5",
                f"log.append(clip({value}))",
                f"{name}, {other} = clip({value}), {name}",
                f"del {name}",
                f"return {value}",
                f"{name} = {other}",
                f"assert {value}",
                f"raise KeyError({value})",
            )
        )
    )
    return [form]


@st.composite
def _loop_exit(draw: st.DrawFn) -> Lines:
    return [f"if {draw(expressions)}:", f"    {draw(st.sampled_from(('break', 'continue')))}"]


@st.composite
def _statement(draw: st.DrawFn, depth: int, in_loop: bool) -> Lines:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(_loop_exit()) if in_loop and draw(st.integers(0, 3)) == 0 else draw(_simple())
    kind = draw(st.sampled_from(("if", "while", "for", "try", "with", "def")))
    body = _indented(draw(_suite(depth - 1, in_loop or kind in ("while", "for"))))
    if kind == "def":  # a function of its own: no loop around it, and it may rebind the outer variables
        inner = _indented(draw(_suite(depth - 1, False)))
        outer, result = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
        return ["def inner():", f"    nonlocal {outer}", *inner, f"{result} = clip(inner())"]
    if kind == "if":
        return [f"if {draw(expressions)}:", *body, "else:", *_indented(draw(_suite(depth - 1, in_loop)))]
    if kind == "while":
        return ["while len(log) < 12:", "    log.append('w')", *body]
    if kind == "for":
        tail = ["else:", *_indented(draw(_suite(depth - 1, in_loop)))] if draw(st.booleans()) else []
        return [f"for {draw(st.sampled_from(NAMES))} in range({draw(st.integers(0, 3))}):", *body, *tail]
    if kind == "with":
        return [f"with Manager(log, {draw(st.booleans())}):", *body]
    handler = _indented(draw(_suite(depth - 1, in_loop)))
    lines = ["try:", *body, f"except {draw(st.sampled_from(ERRORS))} as error:", *handler]
    if draw(st.booleans()):
        lines += ["finally:", *_indented(draw(_suite(depth - 1, False)))]
    return lines


@st.composite
def _suite(draw: st.DrawFn, depth: int, in_loop: bool) -> Lines:
    parts = draw(st.lists(_statement(depth, in_loop), min_size=1, max_size=3))
    return [line for part in parts for line in part]


@st.composite
def programs(draw: st.DrawFn) -> str:
    body = draw(_suite(2, False))
    return "\n".join(["def f(a, b, log):", "    c = d = 1", *_indented(body), "    return a, b, c, d", ""])


def compiled(source: str) -> types.FunctionType:
    """The function of a program, without what the compiler thinks of it."""
    namespace = dict(vars(bytecode_subjects))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(source, "<program>", "exec"), namespace)
    return namespace["f"]
