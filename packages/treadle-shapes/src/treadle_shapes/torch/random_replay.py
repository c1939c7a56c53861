"""Operators of Treadle's own that draw random numbers a second time, the same ones.

    s = treadle.generator_state(device)            the state of the device's default generator
    r = aten.bernoulli.p(x, 0.9)                   draws
    r2 = treadle.replay_bernoulli.p(s, x, 0.9)     equals r; the default generator is where it was

The operators exist once they have been asked for: `generator_state()` and `replay_of(op)` define them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from treadle_shapes.torch.fake_registration import register_fake

#: bytes of the state of a generator, by device type: of the CPU the Mersenne Twister's, of CUDA a seed and an offset
GENERATOR_STATE_BYTES = {"cpu": torch.default_generator.get_state().numel(), "cuda": 16}

_LIBRARY: list[torch.library.Library] = []


def _library() -> torch.library.Library:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library("treadle", "FRAGMENT"))
    return _LIBRARY[0]


def why_not_replay(op: torch._ops.OpOverload) -> str | None:
    """Why no operator can draw again what `op` has drawn from a default generator."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return "it draws no random numbers"
    if op.namespace != "aten":
        return "what a custom operator draws from is unknown"
    if op._schema.is_mutable or any(result.alias_info is not None for result in op._schema.returns):
        return "it writes to its arguments"
    return None


@functools.cache
def generator_state() -> torch._ops.OpOverload:
    """The operator that reads the state of a device's default generator, a uint8 tensor on the CPU."""
    define(
        "generator_state(Device device) -> Tensor",
        lambda device: _default_generator(device).get_state(),
        lambda device: torch.empty(GENERATOR_STATE_BYTES[device.type], dtype=torch.uint8),
        (torch.Tag.nondeterministic_seeded,),
    )
    return torch.ops.treadle.generator_state.default


@functools.cache
def replay_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator with the arguments of `op` behind a generator's state, which draws from that state.

    `op` is an operator for which `why_not_replay` is None.
    """
    assert why_not_replay(op) is None, f"{op} cannot be replayed: {why_not_replay(op)}"
    name, overload = op._schema.name.removeprefix("aten::"), op._schema.overload_name
    arguments = str(op._schema).split("(", 1)[1]
    separator = "" if arguments.startswith(")") else ", "
    full = f"replay_{name}.{overload}" if overload else f"replay_{name}"
    define(
        f"{full}(Tensor state{separator}{arguments}",
        _replaying(op),
        lambda state, *args, **kwargs: op(*args, **kwargs),
        (),
    )
    return getattr(getattr(torch.ops.treadle, f"replay_{name}"), overload or "default")  # type: ignore[no-any-return]


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], tags: Any) -> None:
    """Define an operator of Treadle's own, which autograd does not differentiate."""
    name = schema.split("(", 1)[0]
    _library().define(schema, tags=tags)
    _library().impl(name, kernel, "CompositeExplicitAutograd")
    register_fake(f"treadle::{name}", fake, _library())


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    generators: Any = torch.get_device_module(device).default_generators
    index = torch.get_device_module(device).current_device() if device.index is None else device.index
    return generators[index]  # type: ignore[no-any-return]


def _with_generator(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload of the same operator that takes a generator and draws the same."""
    names = {argument.name for argument in op._schema.arguments}
    if "generator" in names:
        return op
    for overload in op.overloadpacket.overloads():
        found = getattr(op.overloadpacket, overload)
        if {argument.name for argument in found._schema.arguments} == names | {"generator"}:
            return found  # type: ignore[no-any-return]
    return None


def _replaying(op: torch._ops.OpOverload) -> Callable[..., Any]:
    with_generator = _with_generator(op)

    def replay(state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        device = _device_of(args, kwargs)
        if with_generator is not None:
            kwargs = {**kwargs, "generator": torch.Generator(device).set_state(state)}
            return with_generator(*args, **kwargs)
        default = _default_generator(device)
        before = default.get_state()
        default.set_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            default.set_state(before)

    return replay


def _device_of(args: Any, kwargs: Any) -> torch.device:
    """The device that an operator with these arguments draws on."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    found = [value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return found[0] if found else torch.device("cpu")


__all__ = ["define", "GENERATOR_STATE_BYTES", "generator_state", "replay_of", "why_not_replay"]
