"""Random object graphs that change between evaluations: what a guard remembers never makes a difference.

    TREADLE_FRAME_STEPS=100000 python -m pytest tests/test_guard_memo_random.py      as many changes in all

A world is made of objects of several kinds. A guard program is drawn from paths that exist in it and checks that hold, and then the world
is changed, one change at a time: other values, equal values at other places, the value from before again, new objects at the
addresses of old ones. After each change the program must say what `why_fails` says, which evaluates every check by itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from frame_helpers import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_frame import Check, GuardProgram

STEPS = int(os.environ.get("TREADLE_FRAME_STEPS", "0"))
STEPS_PER_WORLD = 40
NAMES = ("a", "b", "c", "d")

Undo = Callable[[], None]
Path = tuple[Any, ...]


def new_classes() -> tuple[type, ...]:
    class Base:
        common = 1

    class Node(Base):
        kind = "node"

    class Other(Base):
        kind = "node"

    class Hooked(Base):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    class Slotted:
        __slots__ = ("__weakref__", "a", "b")

    return (Node, Other, Hooked, Slotted)


def put(obj: Any, name: str, value: Any) -> None:
    """Set an attribute, unless the class has a property of that name by now."""
    with contextlib.suppress(AttributeError):
        setattr(obj, name, value)


def remove(obj: Any, name: str) -> None:
    with contextlib.suppress(AttributeError):
        delattr(obj, name)


class World:
    """Objects reachable from `root`, the globals and a cell."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.classes = new_classes()
        self.globals: dict[str, Any] = {}
        self.objects: list[weakref.ref[Any]] = []
        self.root = self.instance(3)
        for name in NAMES:
            self.globals[name] = self.value(2)
        self.cell = types.CellType(self.value(2))

    @property
    def view(self) -> tuple[Any, ...]:
        return ({"o": self.root}, self.globals, {"cell": self.cell}, {"len": len})

    # ---- making

    def instance(self, depth: int) -> Any:
        made = self.random.choice(self.classes)()
        for name in self.random.sample(NAMES[:2] if not hasattr(made, "__dict__") else NAMES, 2):
            put(made, name, self.value(depth - 1))
        self.objects.append(weakref.ref(made))
        return made

    def scalar(self) -> Any:
        return self.random.choice(
            [0, 1, True, None, "a", "b", 1.0, 0.0, -0.0, 10**9 + self.random.randrange(2), (1, 2), b"x"]
        )

    def value(self, depth: int) -> Any:
        if depth <= 0:
            return self.scalar()
        kind = self.random.randrange(8)
        if kind == 0:
            return self.instance(depth)
        if kind == 1:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        if kind == 2:
            return tuple(self.value(depth - 1) for _ in range(self.random.randrange(3)))
        if kind == 3:
            return {self.random.choice([*NAMES, 1, 2]): self.value(depth - 1) for _ in range(2)}
        if kind == 4:
            return OrderedDict((name, self.value(depth - 1)) for name in self.random.sample(NAMES, 2))
        if kind == 5:
            return self.function(depth)
        if kind == 6:
            return self.random.choice(self.classes)
        return self.scalar()

    def function(self, depth: int) -> Any:
        free = self.value(depth - 1)

        def made(x: Any = None, *, y: Any = 1) -> Any:
            return (x, y, free)

        made.__defaults__ = (self.value(depth - 1),) if self.random.random() < 0.7 else None
        return made

    # ---- the guard

    def program(self) -> GuardProgram:
        checks = []
        if self.random.random() < 0.8:
            checks.append(Check((("local", "o"),), "refers", weakref.ref(self.root)))
        for _ in range(self.random.randrange(3, 20)):
            checks += self.checks_on_a_path()
        return GuardProgram(checks)

    def checks_on_a_path(self) -> list[Check]:
        path, value = self.random.choice(
            [
                ((("local", "o"),), self.root),
                ((("global", name := self.random.choice(NAMES)),), self.globals[name]),
                ((("closure", "cell"),), self.cell.cell_contents),
                ((("closure_cell", "cell"),), self.cell),
                ((("globals",),), self.globals),
            ]
        )
        checks = self.checks(path, value)
        for _ in range(self.random.randrange(6)):
            steps = self.steps(value)
            if not steps:
                break
            step, value = self.random.choice(steps)
            path = (*path, step)
            if self.random.random() < 0.5:
                checks += self.checks(path, value)
        return checks + self.checks(path, value)

    def steps(self, value: Any) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = [(("type",), type(value))]
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            found += [(("instance_dict", name), item) for name, item in own.items() if isinstance(name, str)]
            found += [(("own_dict",), own), (("attr", "__dict__"), own)]
        if isinstance(value, type):
            found += [(("attr", name), getattr(value, name)) for name in ("kind", "common") if hasattr(value, name)]
            found += [(("attr", "__dict__"), value.__dict__)]
        if isinstance(value, types.MappingProxyType):
            found += [(("item", name), value[name]) for name in ("kind", "common") if name in value]
        if isinstance(value, self.classes):
            found += [(("attr", name), getattr(value, name)) for name in (*NAMES, "kind") if hasattr(value, name)]
            slots = [
                name for name in ("a", "b") if name in getattr(type(value), "__slots__", ()) and hasattr(value, name)
            ]
            found += [(("descriptor", type(value).__dict__[name]), getattr(value, name)) for name in slots]
        if isinstance(value, dict):
            found += [(("dict_item", key), item) for key, item in value.items()]
            found += [(("item", key), item) for key, item in value.items()]
            found += [(("dict_key", i), key) for i, key in enumerate(value)]
        if isinstance(value, list):
            found += [(self.random.choice([("list_item", i), ("item", i)]), item) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            found += [(("tuple_item", i), item) for i, item in enumerate(value)]
        if isinstance(value, types.FunctionType):
            names = ("__defaults__", "__code__", "__closure__", "__kwdefaults__", "__globals__")
            found += [(("attr", name), getattr(value, name)) for name in names[:4]]
        if isinstance(value, types.CellType):
            found += [(("attr", "cell_contents"), value.cell_contents)]
        return found

    def checks(self, path: Path, value: Any) -> list[Check]:
        found = [Check(path, "type_is", type(value)), Check(path, "call", lambda value: True)]
        if value is None or isinstance(value, (int, str, float, bytes)):
            found.append(Check(path, "equals", value))
        if isinstance(value, (list, tuple, dict, str)):
            found.append(Check(path, "len", len(value)))
        if isinstance(value, dict):
            found += [Check(path, "dict_keys", tuple(value)), Check(path, "lacks_key", "z")]
            found += [Check(path, "has_key", key) for key in value]
        if isinstance(value, self.classes):
            found += [
                Check(path, "has_attr" if hasattr(value, name) else "lacks_attr", name)
                for name in (*NAMES, "kind", "z")
            ]
            found.append(Check(path, "refers", weakref.ref(value)))
            found.append(Check(path, "is_not", self.root if value is not self.root else self))
        if isinstance(value, type) and value in self.classes:
            found += [Check(path, "is", value), Check(path, "type_lookup", (("z", "lacks", None),))]
            found.append(
                Check(
                    path,
                    "type_lookup",
                    (("common", "in", next((c for c in value.__mro__ if "common" in vars(c)), value)),),
                )
            )
        if isinstance(value, types.FunctionType):
            n, names = len(value.__defaults__ or ()), tuple(value.__kwdefaults__ or ())
            found.append(Check(path, "function_code", (weakref.ref(value.__code__), n, names)))
        return self.random.sample(found, min(len(found), self.random.randrange(1, 4)))

    # ---- changing

    def change(self) -> Undo:
        changes = (
            self.change_attribute,
            self.change_attribute,
            self.delete_attribute,
            self.change_container,
            self.change_container,
            self.change_class,
            self.change_type,
            self.change_own_dict,
            self.change_global,
            self.change_cell,
            self.change_function,
            self.replace_root,
        )
        return self.random.choice(changes)()

    def other(self, old: Any) -> Any:
        """A new value: the same object, an equal one, perhaps at the same address, or any."""
        kind = self.random.randrange(5)
        if kind == 0:
            return old
        if kind == 1 and isinstance(old, (list, dict)):
            return type(old)(old)
        if kind == 1 and isinstance(old, int) and not isinstance(old, bool):
            return int(str(old))
        if kind == 2 and isinstance(old, self.classes) and hasattr(old, "__dict__"):
            made = type(old)()
            made.__dict__.update(old.__dict__)
            return made
        return self.value(2)

    def renewed(self, old: Any) -> Any:
        """A tuple of the same length as the old one, made when nobody else holds that."""
        if not isinstance(old, tuple) or not old:
            return self.scalar()
        items = [*old[:-1], self.scalar()]
        return tuple(items)

    def living(self) -> list[Any]:
        return [self.root] + [found for reference in self.objects if (found := reference()) is not None]

    def change_attribute(self) -> Undo:
        obj = self.random.choice(self.living())
        name = self.random.choice(NAMES[:2] if not hasattr(obj, "__dict__") else NAMES)
        had, old = hasattr(obj, name), getattr(obj, name, None)
        if self.random.random() < 0.5:
            put(obj, name, None)  # frees the old value first, unless somebody holds it
        put(obj, name, self.other(old) if self.random.random() < 0.7 else self.renewed(old))
        return lambda: put(obj, name, old) if had else remove(obj, name)

    def delete_attribute(self) -> Undo:
        obj = self.random.choice(self.living())
        names = [name for name in NAMES if hasattr(obj, name) and name not in dir(type(obj))]
        if not names:
            return self.change_global()
        name = self.random.choice(names)
        old = getattr(obj, name)
        remove(obj, name)
        return lambda: put(obj, name, old)

    def containers(self) -> list[Any]:
        found = [getattr(obj, name) for obj in self.living() for name in NAMES if hasattr(obj, name)]
        found += list(self.globals.values()) + [self.cell.cell_contents]
        return [value for value in found if isinstance(value, (list, dict))]

    def change_container(self) -> Undo:
        found = self.containers()
        if not found:
            return self.change_attribute()
        value = self.random.choice(found)
        if isinstance(value, list):
            old_items = list(value)
            kind = self.random.randrange(4)
            if kind == 0 or not value:
                value.append(self.value(1))
            elif kind == 1:
                value.pop()
            elif kind == 2:
                i = self.random.randrange(len(value))
                value[i] = None  # frees the old one first
                value[i] = self.other(old_items[i])
            else:
                value.extend([None] * 100)
                del value[-100:]
            return lambda: value.__setitem__(slice(None), old_items)
        old = list(value.items())
        kind = self.random.randrange(4)
        key = self.random.choice([*NAMES, 1, 2, "z"])
        if kind == 0 and key in value:
            del value[key]
        elif kind == 1 and key in value and isinstance(value, OrderedDict):
            value.move_to_end(key)
        elif kind == 2 and key in value:
            value[key] = value.pop(key)
        else:
            value[key] = self.other(value.get(key))

        def undo() -> None:
            value.clear()
            value.update(old)

        return undo

    def change_class(self) -> Undo:
        cls = self.random.choice(self.classes)
        owner = self.random.choice([c for c in cls.__mro__ if c is not object])
        name = self.random.choice(("kind", "common", "z", "a", "__getattr__", "__len__"))
        had, old = name in vars(owner), vars(owner).get(name)
        if isinstance(old, types.MemberDescriptorType):
            return self.change_global()
        kinds = [1, "node", property(lambda self: 3), lambda self, *rest: 4, classmethod(lambda cls: 5)]
        new = self.random.choice(kinds[3:4] if name.startswith("__") else kinds)
        setattr(owner, name, new)

        def undo() -> None:
            if had:
                setattr(owner, name, old)
            elif name in vars(owner):
                delattr(owner, name)

        if name.startswith("__"):
            undo()  # methods that everything calls: set and deleted again
            return lambda: None
        return undo

    def change_type(self) -> Undo:
        obj = self.random.choice(self.living())
        old = type(obj)
        new = self.random.choice(self.classes)
        with contextlib.suppress(TypeError):  # an object of another layout
            obj.__class__ = new
        return lambda: setattr(obj, "__class__", old)

    def change_own_dict(self) -> Undo:
        obj = self.random.choice(self.living())
        if not hasattr(obj, "__dict__"):
            return self.change_attribute()
        old = obj.__dict__
        obj.__dict__ = self.random.choice([dict(old), {**old, "extra": 1}, {"a": 1}])
        return lambda: setattr(obj, "__dict__", old)

    def change_global(self) -> Undo:
        name = self.random.choice((*NAMES, "z", "unrelated"))
        had, old = name in self.globals, self.globals.get(name)
        self.globals[name] = self.other(old)
        return lambda: self.globals.update({name: old}) if had else self.globals.pop(name, None)

    def change_cell(self) -> Undo:
        old = self.cell.cell_contents
        self.cell.cell_contents = self.other(old)

        def undo() -> None:
            self.cell.cell_contents = old

        return undo

    def change_function(self) -> Undo:
        found = [getattr(obj, name, None) for obj in self.living() for name in NAMES]
        found = [value for value in found if isinstance(value, types.FunctionType)]
        if not found:
            return self.change_cell()
        function = self.random.choice(found)
        kind = self.random.randrange(4)
        if kind == 3:
            cell = function.__closure__[0]
            contents = cell.cell_contents
            cell.cell_contents = self.other(contents)
            return lambda: setattr(cell, "cell_contents", contents)
        name = ("__defaults__", "__kwdefaults__", "__code__")[kind]
        old = getattr(function, name)
        replaced = {"__defaults__": (self.value(1),), "__kwdefaults__": {"y": self.value(1)}}
        setattr(function, name, function.__code__.replace() if kind == 2 else replaced[name])
        return lambda: setattr(function, name, old)

    def replace_root(self) -> Undo:
        old = self.root
        self.root = self.other(old) if self.random.random() < 0.5 else self.instance(3)
        if not isinstance(self.root, self.classes):
            self.root = old

        def undo() -> None:
            self.root = old

        return undo


def play(seed: int, steps: int) -> tuple[int, int, int]:
    """Evaluations that held and that failed, and words that were watched."""
    world = World(seed)
    program = world.program()
    undos: list[Undo] = []
    held = failed = watched = 0
    for number in range(steps):
        for _ in range(world.random.choice((1, 1, 3))):
            found, expected = program.check(*world.view), program.why_fails(*world.view)
            assert found == (expected is None), f"seed {seed}, step {number}: {expected}"
            held, failed = held + found, failed + (not found)
            watched += program.memo["witnesses"]
        if undos and world.random.random() < 0.6:
            undos.pop()()
        elif number > 3:
            undos.append(world.change())
        if number % 16 == 15:
            del undos[: len(undos) // 2]
            gc.collect()
    return held, failed, watched


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150), deadline=None)
def test_memory_makes_no_difference(seed):
    play(seed, STEPS_PER_WORLD)


def test_random_worlds_test_something():
    """Guards both hold and fail, and have memos."""
    results = [play(seed, STEPS_PER_WORLD) for seed in range(20)]
    held, failed, watched = map(sum, zip(*results, strict=True))
    assert held > 200
    assert failed > 100
    assert watched > 200


def test_many_steps():
    """Nothing unless TREADLE_FRAME_STEPS says how many."""
    for seed in range(STEPS // STEPS_PER_WORLD):
        play(10**9 + seed, STEPS_PER_WORLD)
