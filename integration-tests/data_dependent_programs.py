"""Random programs over masks, indices and numbers read from tensors, as source text with the user's own variable names."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

# What a line makes, from what, and its text. Kinds: T rows of six floats, M a mask of the rows of a T, I positions of rows of a T,
# V floats, J ints, N an int, F a float, B a truth value. {a} and {b} are operands; M and I stand with their T as {t}.
_LINES: tuple[tuple[str, str, str], ...] = (
    ("M", "T", "{a}[:, 0] > {c}"),
    ("M", "T", "({a} > {c}).any(1)"),
    ("I", "M", "torch.where({a})[0]"),
    ("I", "M", "{a}.nonzero().squeeze(1)"),
    ("T", "M", "{t}[{a}]"),
    ("T", "I", "{t}[{a}]"),
    ("T", "I", "{t}.index_select(0, {a})"),
    ("T", "I", "torch.zeros_like({t}).index_add_(0, {a}, {t}[{a}] * 2)"),
    ("T", "M", "torch.where({a}[:, None], {t}, 0.5)"),
    ("V", "M", "{t}[{a}].sum(0)"),
    ("V", "M", "{t}[{a}, 1]"),
    ("V", "T", "{a}.masked_select({a} > {c})"),
    ("V", "T", "{a}.sum(1)"),
    ("V", "T", "{a}.reshape(-1)"),
    ("V", "V", "{a} * 2 + 1"),
    ("V", "V", "{a}[{a} > {c}]"),
    ("V", "V", "{a}.cumsum(0)"),
    ("V", "V", "torch.roll({a}, 1, 0)"),
    ("T", "T", "torch.roll({a}, (1, 2), (0, 1))"),
    ("V", "V", "{a}.squeeze()"),
    ("T", "T", "{a}.unsqueeze(1).squeeze(1)"),
    ("V", "T", "{a}.logsumexp(0)"),
    ("T", "T", "torch.nn.functional.scaled_dot_product_attention({a}, {a}, {a})"),
    ("T", "T", "torch.nn.functional.layer_norm({a}, (6,))"),
    ("V", "V", "torch.nn.functional.max_pool1d({a}[None], 2, padding=1)[0]"),
    ("V", "N", "torch.linspace(0, 1, {a})"),
    ("V", "V", "{a}.sort()[0]"),
    ("V", "V", "torch.nn.functional.pad({a}, (1, 2))"),
    ("T", "T", "{a}.flip(0)"),
    ("T", "J", "torch.nn.functional.one_hot({a}.clamp(0, 5), 6) * 0.5"),
    ("T", "T", "{a} * 2 - 1"),
    ("T", "T", "{a}.clone().add_(1)"),
    ("T", "T", "torch.cat([{a}, {a}[1:]])"),
    ("T", "TT", "torch.cat([{a}, {b}])"),
    ("T", "T", "{a}.softmax(1)"),
    ("T", "T", "{a} @ weight"),
    ("T", "T", "{a} - {a}.mean(1, keepdim=True)"),
    ("T", "TN", "{a}[:{b}]"),
    ("T", "TN", "{a}[{b}:]"),
    ("T", "TN", "{a}[{b}:{b} + 1] + 1"),
    ("V", "TN", "{a}[{b}] * 2"),
    ("V", "TN", "{a}[:, {b}]"),
    ("T", "N", "torch.zeros({a}, 6) + 1"),
    ("T", "N", "torch.ones(6).expand({a}, 6) + 0"),
    ("V", "N", "torch.arange({a}) * 0.5"),
    ("V", "N", "torch.full(({a},), 2.0)"),
    ("T", "TN", "{a}.repeat_interleave(torch.full(({a}.shape[0],), 2), dim=0) + {b}"),
    ("J", "V", "torch.unique((abs({a}) * 2).to(torch.int64))"),
    ("J", "T", "torch.unique(({a} * 2).to(torch.int64), return_counts=True)[1]"),
    ("J", "V", "torch.bincount((abs({a}) * 2).to(torch.int64).clamp(max=9))"),
    ("V", "J", "{a} + 0.5"),
    ("N", "J", "{a}.sum().item()"),
    ("N", "M", "{a}.sum().item()"),
    ("N", "M", "int({a}.sum())"),
    ("N", "T", "{a}.shape[0]"),
    ("N", "V", "len({a})"),
    ("N", "N", "{a} + 1"),
    ("N", "N", "{a} * 2 - 3"),
    ("N", "N", "{a} // 2"),
    ("N", "N", "{a} % 3"),
    ("N", "N", "min({a}, 3)"),
    ("N", "N", "max({a}, 1)"),
    ("N", "N", "abs({a} - 2)"),
    ("N", "NN", "{a} + {b}"),
    ("F", "V", "{a}.sum().item()"),
    ("F", "V", "float({a}.max())"),
    ("F", "N", "{a} / 3"),
    ("F", "F", "{a} * 0.5 + 1"),
    ("F", "FN", "{a} - {b}"),
    ("T", "TF", "{a} * {b}"),
    ("T", "TF", "{a}.clamp(max={b})"),
    ("T", "TN", "{a} + {b}"),
    ("B", "NN", "{a} < {b}"),
    ("B", "F", "{a} > 0"),
    ("B", "M", "bool({a}.any())"),
    ("B", "B", "not {a}"),
    ("T", "TB", "{a} * {b}"),
    ("V", "FN", "torch.tensor([{a}, {b}])"),
    ("J", "NN", "torch.tensor([{a}, {b}])"),
    ("T", "TF", "{a} - torch.tensor({b})"),
)  # fmt: skip
_STATEMENTS: tuple[tuple[str, str], ...] = (
    ("T", "{a}.mul_(2)"),
    ("M", "{t}[{a}] = 0.25"),
    ("M", "{t}[{a}] = {t}[{a}] * 2"),
    ("I", "{t}[{a}] += 1"),
    ("TN", "{a}[{b}] = 1.5"),
    ("TN", "{a}[:{b}] = 1.5"),
    ("TN", "{a}[{b}:] *= 2"),
    ("TN", "{a}[:, :{b}] = {a}[:, :{b}] + 1"),
    ("N", "torch._check({a} >= 0)"),
    ("N", "torch._check({a} < 1000)"),
    ("N", "assert {a} > -50"),
    ("NV", "kept.append(({a}, {b}))"),
)
_CONSTANTS = (-9.0, -0.5, 0.0, 0.5, 9.0)
_numbers = itertools.count()


class Program:
    """A function `(x, y, k, weight, kept) -> tuple` and its text; x, y: rows of six, k: a 0-d int tensor, kept: a list."""

    def __init__(self, lines: list[str], results: list[str]):
        self.text = "\n    ".join(["def run(x, y, k, weight, kept):", *lines, f"return ({', '.join(results)},)"]) + "\n"
        name = f"<data dependent program {next(_numbers)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch}
        exec(compile(self.text, name, "exec"), scope)
        self.run: Callable[..., Any] = scope["run"]

    def __repr__(self) -> str:
        return self.text


@st.composite
def programs(draw: Any, most: int = 9) -> Program:
    """Programs of up to `most` lines."""
    made: dict[str, list[tuple[str, str]]] = {"T": [("x", ""), ("y", "")], "N": [("n", "")]}
    lines = ["n = k.item()"]
    for number in range(draw(st.integers(2, most))):
        possible = [line for line in _LINES if all(kind in made for kind in line[1])]
        statements = [(None, *line) for line in _STATEMENTS if all(kind in made for kind in line[0])]
        kind, operands, text = draw(st.sampled_from([*possible, *possible, *statements]))
        chosen = [draw(st.sampled_from(made[operand])) for operand in operands]
        a, b = chosen[0], chosen[-1]
        text = text.format(a=a[0], b=b[0], t=a[1], c=draw(st.sampled_from(_CONSTANTS)) if "{c}" in text else 0)
        if kind is None:
            lines.append(text)
            continue
        lines.append(f"v{number} = {text}")
        owner = a[0] if kind == "M" else a[1] if kind == "I" else ""
        made.setdefault(kind, []).append((f"v{number}", owner))
    names = [name for values in made.values() for name, _ in values if name.startswith("v")] or ["x"]
    results = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return Program(lines, results)
