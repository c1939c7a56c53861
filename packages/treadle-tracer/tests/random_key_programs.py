"""Random programs on dicts, sets, tables and strings whose keys, members and positions differ from call to call."""

from __future__ import annotations

import collections
import random
from typing import Any

import torch

KEYS = (
    "i", "j", "i % 3", "n", "s", "t", "f'k{i}'", "f'{s}_{i}'", "s + t", "'a'", "'k1'", "1", "0", "s.upper()", "len(s)", "i + 1", "(i, s)",
    "True", "2.0", "None", "-i", "n[:1]",
)  # fmt: skip
VALUES = ("1.5", "i", "total", "x", "s", "len(s)")
STATEMENTS = (
    "d[{k}] = {v}", "d[{k}] = total", "total += d.get({k}, 0.5)", "total += ({k}) in d", "total += len(d)", "d.pop({k}, None)",
    "total += d.setdefault({k}, {v})", "del d[{k}]", "total += d[{k}]", "total += e[{k}]", "e[{k}] += 1", "total += len(e)",
    "od[{k}] = {v}", "total += len(od)", "od.pop({k}, 0)", "total += sum(1 for q in od if q == {k})", "st.add({k})", "total += ({k}) in st",
    "total += len(st)", "st.discard({k})", "total += sum(1 for q in st if q == {k})", "total += bool(st)", "total += lst[{k}]",
    "total += tup[{k}]", "lst[{k}] = {v}", "lst.append({v})", "total += len(lst)", "total = total + tensors[{k}]", "tensors[{k}].add_(1)",
    "tensors[{k}] = total", "total += (3, 1, 4, 1, 5)[{k}]", "loc[{k}] = {v}", "total += len(loc)", "total += loc.get({k}, 2)",
    "loc.update(d)", "d.update(loc)", "out.append({k})", "out.append({k} in loc)", "for q in d: out.append(q)",
    "if s.startswith('a'): total += 1", "if {k} == {k2}: total += 2", "total += s.count('a')", "if s < t: total *= 2",
    "out.append(s.split('b'))", "if s in n: total += 3", "total += 'ab'.find(s)", "if not t: total += 4", "out.append(sorted(map(str, d)))",
    "out.append(list(d.items())[:2])", "total += layers[{k}](x).sum()", "out.append(s * 2)", "out.append(s is t)",
    "out.append({k} if i > 2 else {k2})", "out.append(hash({k}) == hash({k2}))", "out.append(s.join(['x', 'y']))",
    "out.append('%s|%d' % (s, i))", "out.append(type({k}).__name__)", "out.append(cnt[{k}])", "cnt[{k}] += 1",
    "out.append('{{}}{{}}'.format(s, i))", "out.append(str(i) + s)", "out.append(min(s, t))", "out.append(list(reversed(d))[:1])",
    "d |= {{{k}: 1}}", "out.append({{{k}: 1, {k2}: 2}})", "out.append({{{k}, {k2}}} == {{{k}}})", "h.x[{k}] = {v}", "total += len(h.x)",
    "setattr(h, 'v' + s.strip('-'), i)", "out.append(getattr(h, 'va', 7))", "out.append(sorted(vars(h)))",
)  # fmt: skip
NAMES = ("a", "b", "ab", "abc", "", "k1", "zz", "A", "1")
CAUGHT = """try:
        {}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        out.append(type(error).__name__ + str(error))"""


def program(r: random.Random) -> str:
    """The text of a function `f(x, i, j, s, t, n)` of globals that `state` makes."""
    lines = []
    for _ in range(r.randint(2, 7)):
        line = r.choice(STATEMENTS).format(k=r.choice(KEYS), k2=r.choice(KEYS), v=r.choice(VALUES))
        lines.append("    " + (CAUGHT.format(line) if r.random() < 0.25 else line))
    body = "\n".join(lines)
    return (
        f"def f(x, i, j, s, t, n):\n    total = x.sum()\n    out = []\n    loc = {{}}\n{body}\n    return total, out\n"
    )


class Holder:
    """Something with attributes."""


def state(seed: int) -> dict[str, Any]:
    """The globals of a program, the same for the same seed."""
    r = random.Random(seed)
    torch.manual_seed(0)
    holder = Holder()
    holder.x = {}  # type: ignore[attr-defined]
    tensors: Any = [torch.full((2,), float(q)) for q in range(4)]
    if r.random() < 0.5:
        tensors = {q: torch.full((2,), float(k)) for k, q in enumerate((0, 1, 2, "a", "b"))}
    return {
        "h": holder,
        "d": {0: 1.0, "a": 2.0, "k1": 3.0} if r.random() < 0.5 else {},
        "e": collections.defaultdict(float),
        "od": collections.OrderedDict({"a": 1, 1: 2} if r.random() < 0.5 else {}),
        "st": {1, "a"} if r.random() < 0.5 else set(),
        "lst": [1.0, 2.0, 3.0, 4.0],
        "tup": (1, 2, 3, 5),
        "tensors": tensors,
        "layers": [torch.nn.Linear(2, 2) for _ in range(3)],
        "cnt": collections.Counter(),
    }


def arguments(r: random.Random) -> tuple[Any, ...]:
    """Arguments of a call."""
    return (torch.ones(2), r.randint(-2, 6), r.randint(0, 3), r.choice(NAMES), r.choice(NAMES), r.choice(NAMES))


def shown(value: Any) -> Any:
    """What is compared: types, contents and order."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), [round(q, 4) for q in value.detach().flatten().tolist()])
    if isinstance(value, dict):
        return (type(value).__name__, [(shown(k), shown(q)) for k, q in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, value)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [shown(q) for q in value])
    if isinstance(value, Holder):
        return {name: shown(q) for name, q in vars(value).items()}
    return "layer" if isinstance(value, torch.nn.Module) else (type(value).__name__, value)


def outcome(function: Any, args: tuple[Any, ...], scope: dict[str, Any]) -> Any:
    """What a call gives, and the state after it."""
    try:
        result = shown(function(*args))
    except Exception as error:  # noqa: BLE001
        result = (type(error).__name__, str(error))
    kept = {name: shown(value) for name, value in scope.items() if not name.startswith("__") and name != "f"}
    return result, shown(args[0]), kept
