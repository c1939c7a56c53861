"""`json`, substitution in `re`, texts of containers, `id` of what the trace has made."""

from __future__ import annotations

import json
import pprint
import re
import string

import pytest
import torch
from compile_runs import compiled


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value})"


class Node:
    def __init__(self, *children):
        self.children = children


def written(x):
    plain = json.dumps({"a": [1, 2.5, None, (True,)], "b": {"c": "ä"}}, sort_keys=True, indent=1, ensure_ascii=False)
    return x + len(plain), plain, json.dumps([]), json.dumps("a", separators=(",", ":"))


def written_numbers(x):
    return x + 1, json.dumps({"loss": x.sum().item(), "sizes": list(x.shape)})


def read(x):
    data = json.loads('{"scale": 3, "list": [1, 2]}')
    data["list"].append(5)
    return x * data["scale"], data, json.loads(b"[null, 1e3]")


def substituted(x):
    doubled = re.sub(r"\d", lambda match: str(int(match.group()) * 2), "a1b2")
    counted = re.compile("x*").subn(lambda match: "-", "axb", 2)
    return x + len(doubled), doubled, counted, re.sub("a", lambda m: m[0].upper() + str(m.start()), "banana", count=2)


def template(x):
    return x + 1, string.Template("$a and $b").substitute(a="xx", b=3), string.Template("$a $$").safe_substitute()


def texts_of_containers(x):
    return x + 1, repr([Shown(1)]), f"{(Shown(2),)}", str({"k": [Shown("a")], 2: ()}), repr([[], Shown(1), "q"])


def walked(x):
    def count(node, seen):
        if id(node) in seen:
            return 0
        seen.add(id(node))
        return 1 + sum(count(child, seen) for child in node.children)

    leaf = Node()
    return x * count(Node(leaf, Node(leaf, leaf)), set())


def numbers_of_objects(x):
    a, b = Node(), Node()
    table = {id(a): "a"}
    return x + 1, table[id(a)], id(b) in table, id(a) == id(a), id(a) == id(b), id([]) == 5


def pretty(x):
    pprint.pprint({"a": [1, 2], "b": {"c": "d"}})
    return x + 1


WHOLE = (
    written,
    written_numbers,
    read,
    substituted,
    template,
    texts_of_containers,
    walked,
    numbers_of_objects,
    pretty,
)


def not_a_number(x):
    try:
        return x, json.dumps([x.sum().item() / 0.0 if x[0] > 1 else x.sum().item()], allow_nan=False)
    except (ValueError, ZeroDivisionError) as error:
        return x, type(error).__name__


def wrong(x):
    seen = []
    for call in (lambda: json.loads("{"), lambda: json.dumps({Node: 1}), lambda: re.sub("a", lambda m: 3, "a")):
        try:
            call()
        except (ValueError, TypeError) as error:
            seen.append(f"{type(error).__name__}: {error}")
    return x + 1, seen


def of_an_object(x):
    return x + 1, json.dumps(Shown(1), default=lambda shown: shown.value), json.loads("1.5", parse_float=str)


def contains_itself(x):
    items = [Shown(1)]
    items.append(items)
    return x + 1, repr(items)


def the_number_itself(x):
    node = Node()
    return x + 1, isinstance(f"{id(node)}", str), id(node) % 2 in (0, 1), id(node) > 0


@pytest.mark.parametrize(
    "program",
    (*WHOLE, not_a_number, wrong, of_an_object, contains_itself, the_number_itself),
    ids=lambda program: program.__name__,
)
def test_programs(program, capsys):
    run, said = compiled(program)
    for start in (1.0, 2.0, 2.0):
        found = run(torch.full((2,), start)), capsys.readouterr()
        expected = program(torch.full((2,), start)), capsys.readouterr()
        assert str(found) == str(expected)
        if program is read:
            found[0][1]["list"].append("changed by the caller")
    if program in WHOLE:
        assert not said.breaks and not said.skips and len(said.graphs) == 1
