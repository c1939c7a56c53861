"""Random numbers from the state of a generator, as functions of that state.

    y = torch.rand(3, generator=g)     =>     y, s2 = treadle.draw_rand.generator(s1, [3]);  later: g.set_state(s2)
    g.manual_seed(4)                   =>     s = treadle.seeded_state(4, cpu)

These operators depend on their arguments alone: a graph may compute them again, or not at all. The state of a default generator is not
passed around, because every operator without a generator draws from it. `seed_default` and `restore_default_state` set it.

The operators exist once they have been asked for.
"""

from __future__ import annotations

import functools
import keyword
from typing import Any

import torch

from treadle_shapes.torch.random_replay import GENERATOR_STATE_BYTES, define

_SELF = "self"


def why_not_draw(op: torch._ops.OpOverload) -> str | None:
    """Why there is no function of a generator's state for what `op` draws."""
    schema = op._schema
    if torch.Tag.nondeterministic_seeded not in op.tags or op.namespace != "aten":
        return "it is no operator of PyTorch that draws random numbers"
    if not any(argument.name == "generator" for argument in schema.arguments):
        return "it takes no generator"
    written = [argument.name for argument in schema.arguments if argument.is_write]
    if len(schema.returns) != 1 or written not in ([], [_SELF]) or _keeps_tensor(schema):
        return "it writes to more than its first argument"
    return None


def _keeps_tensor(schema: Any) -> bool:
    return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)


def fills_first_argument(op: torch._ops.OpOverload) -> bool:
    """Whether `op` writes what it draws to its first argument (`normal_`)."""
    return any(argument.is_write for argument in op._schema.arguments)


@functools.cache
def drawing(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator that takes a state in front of the arguments of `op`, without its generator, and gives the result and the new state.

    `op` is an operator for which `why_not_draw` is None. Where `op` fills its first argument, the result is a new tensor, and only sizes,
    strides, dtype and device of that argument count.
    """
    assert why_not_draw(op) is None, f"{op}: {why_not_draw(op)}"
    name = op._schema.name.removeprefix("aten::").rstrip("_")
    overload = op._schema.overload_name
    overload += "_" if keyword.iskeyword(overload) else ""  # the text of a graph names it
    kind = "fill" if fills_first_argument(op) else "draw"
    full = f"{kind}_{name}" + (f".{overload}" if overload else "")
    define(_schema_of(full, op), _kernel(op), _fake_kernel(op), ())
    return getattr(getattr(torch.ops.treadle, f"{kind}_{name}"), overload or "default")  # type: ignore[no-any-return]


def _schema_of(name: str, op: torch._ops.OpOverload) -> str:
    """normal_(Tensor(a!) self, float mean=0., *, Generator? generator=None)  ->  fill_normal(Tensor generator_state, Tensor self, ...)"""
    given = str(op._schema).split("(", 1)[1].rsplit(") ->", 1)[0].replace("Tensor(a!)", "Tensor")
    parts = [part for part in given.split(", ") if not part.startswith("Generator?")]
    if parts[-1] == "*":
        parts.pop()
    return f"{name}({', '.join(['Tensor generator_state', *parts])}) -> (Tensor, Tensor)"


def _kernel(op: torch._ops.OpOverload) -> Any:
    fills = fills_first_argument(op)

    def draw(generator_state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        generator = torch.Generator(_device_of(args, kwargs)).set_state(generator_state)
        if fills:
            args = (_like(args[0]), *args[1:])
        result = op(*args, **kwargs, generator=generator)
        return result, generator.get_state()

    return draw


def _fake_kernel(op: torch._ops.OpOverload) -> Any:
    fills = fills_first_argument(op)
    plain = _without_generator(op) or functools.partial(op, generator=None)

    def draw(generator_state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = _like(args[0]) if fills else plain(*args, **kwargs)
        return result, torch.empty_like(generator_state)

    return draw


def _without_generator(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload of the same operator that draws from the default generator, and takes symbolic sizes."""
    names = {argument.name for argument in op._schema.arguments} - {"generator"}
    overloads = (getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads())
    return next((found for found in overloads if {a.name for a in found._schema.arguments} == names), None)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same layout: numbers are drawn in the order of the memory."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _device_of(args: Any, kwargs: Any) -> torch.device:
    """The device that an operator with these arguments draws on."""
    found = [value.device for value in args if isinstance(value, torch.Tensor)]
    device = kwargs.get("device")
    return found[0] if found else torch.device("cpu") if device is None else torch.device(device)


@functools.cache
def seeded_state() -> torch._ops.OpOverload:
    """The operator that gives the state of a generator behind `manual_seed`."""
    define(
        "seeded_state(SymInt seed, Device device) -> Tensor",
        lambda seed, device: torch.Generator(device).manual_seed(seed).get_state(),
        lambda seed, device: torch.empty(GENERATOR_STATE_BYTES[device.type], dtype=torch.uint8, device="cpu"),
        (),
    )
    return torch.ops.treadle.seeded_state.default


@functools.cache
def checked_state() -> torch._ops.OpOverload:
    """The operator that gives a state as a generator has it behind `set_state`, and raises what that raises."""
    define(
        "checked_state(Tensor state, Device device) -> Tensor",
        lambda state, device: torch.Generator(device).set_state(state).get_state(),
        lambda state, device: torch.empty_like(state, memory_format=torch.contiguous_format),
        (),
    )
    return torch.ops.treadle.checked_state.default


@functools.cache
def seed_default() -> torch._ops.OpOverload:
    """The operator that does what `torch.manual_seed` does."""
    define("seed_default(SymInt seed) -> ()", _seed_default, lambda seed: None, (torch.Tag.nondeterministic_seeded,))
    return torch.ops.treadle.seed_default.default


def _seed_default(seed: int) -> None:
    torch.manual_seed(seed)


def _restore_default_state(state: torch.Tensor) -> None:
    torch.default_generator.set_state(state)


@functools.cache
def restore_default_state() -> torch._ops.OpOverload:
    """The operator that does what `torch.set_rng_state` does."""
    define(
        "restore_default_state(Tensor state) -> ()",
        _restore_default_state,
        lambda state: None,
        (torch.Tag.nondeterministic_seeded,),
    )
    return torch.ops.treadle.restore_default_state.default


__all__ = [
    "checked_state",
    "drawing",
    "fills_first_argument",
    "seed_default",
    "seeded_state",
    "restore_default_state",
    "why_not_draw",
]
