"""Carries out a case: two worlds from one text, every step in both, everything compared after each."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import math
import os
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from soundness.changes import change
from soundness.compare import Describer, describe_world, first_difference
from soundness.world import Maker, World

Step = tuple[str, str]  # ("call" | "world" | "process", source text)
Compile = Callable[[Any], Any]
ORIGINALS: dict[str, Any] = {
    "relu": torch.relu,
    "silu": F.silu,
    "floor": math.floor,
    "add_": torch.Tensor.add_,
    "linear": torch.nn.Linear.forward,
    "bin": bin,
    "reduce": functools.reduce,
    "sum": torch.Tensor.sum,
}
PROCESS = {
    "builtins": builtins,
    "functools": functools,
    "math": math,
    "os": os,
    "sys": sys,
    "torch": torch,
    "F": F,
    "ORIGINALS": ORIGINALS,
}


@dataclass(frozen=True)
class Case:
    """A world and what happens to it."""

    world: World
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Mismatch:
    """step: the position of the step after which the worlds differ; what: in which respect; detail: how."""

    step: int
    what: str
    detail: str


def make_case(seed: int, n_steps: int = 12) -> Case:
    """A random case: calls, with one or two changes between them."""
    maker = Maker(random.Random(seed))
    world = maker.world()
    steps: list[Step] = [("call", maker.call())]
    while len(steps) < n_steps:
        steps += [change(maker) for _ in range(maker.rng.choice((1, 1, 1, 2)))]
        # Mostly the same arguments, so that an entry made before the change would be hit.
        steps.append(("call", maker.call() if maker.rng.random() < 0.3 else steps[0][1]))
    return Case(world, tuple(steps))


def run_case(case: Case, compile_function: Compile) -> Mismatch | None:
    """The first mismatch, or None. The world's functions are compiled by `compile_function`."""
    with _process_state_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worlds = [world for world in (_build(case.world), _build(case.world)) if world is not None]
        if len(worlds) < 2:
            return None
        worlds[1]["compiled"] = compile_function(worlds[1]["f"])
        for position, (kind, text) in enumerate(case.steps):
            if kind == "process":
                with contextlib.suppress(Exception):
                    exec(text, dict(PROCESS))
                continue
            told = [_carry_out(world, kind, text, position) for world in worlds]
            for what in told[0]:
                if told[0][what] != told[1][what]:
                    return Mismatch(position, what, first_difference(told[0][what], told[1][what]))
    return None


def _build(world: World) -> dict[str, Any] | None:
    """The namespace of a world; None if its text raises."""
    module = types.ModuleType("world")
    sys.modules["world"] = module
    namespace = vars(module)
    try:
        exec(compile(world.text(), "<world>", "exec"), namespace)
    except Exception:
        return None
    return namespace


def _carry_out(world: dict[str, Any], kind: str, text: str, seed: int) -> dict[str, Any]:
    """What a program can see of a step: result or exception, output, random state and the state of the world."""
    torch.manual_seed(seed)
    random.seed(seed)
    printed, describer = io.StringIO(), Describer()
    with contextlib.redirect_stdout(printed):
        try:
            if kind == "call":
                result = eval(text.replace("f(", "compiled(", 1) if "compiled" in world else text, world)
            else:
                result = exec(text, world)
            told = "result", describer.describe(result)
        except Exception as error:
            told = "exception", (type(error).__name__, str(error) if _is_stable(error) else "")
    return {
        "result": told,
        "output": printed.getvalue(),
        "random state": (torch.random.get_rng_state().sum().item(), random.random()),
        "world": describe_world(world),
    }


def _is_stable(error: Exception) -> bool:
    """Whether the message of an exception says the same in both worlds."""
    return "0x" not in str(error) and not isinstance(error, RuntimeError)


@contextlib.contextmanager
def _process_state_kept() -> Iterator[None]:
    """Undo everything that steps "process" change."""
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    depth = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.autograd.set_detect_anomaly(False)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch._C._set_mkldnn_enabled(True)  # its module refuses once torch.testing is imported
        torch.set_warn_always(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.set_default_device(None)
        _undo_patches()
        sys.modules.pop("world", None)


def _undo_patches() -> None:
    torch.relu, F.silu, math.floor = ORIGINALS["relu"], ORIGINALS["silu"], ORIGINALS["floor"]
    torch.Tensor.add_, torch.nn.Linear.forward = ORIGINALS["add_"], ORIGINALS["linear"]
    torch.Tensor.sum, functools.reduce, builtins.bin = ORIGINALS["sum"], ORIGINALS["reduce"], ORIGINALS["bin"]
    torch.nn.modules.module._global_forward_hooks.clear()
    os.environ.pop("TREADLE_SOUNDNESS", None)


def program(case: Case) -> str:
    """A case as text for people."""
    steps: Sequence[str] = [f"# {kind}\n{text}" for kind, text in case.steps]
    return case.world.text() + "\n# -- steps\n" + "\n".join(steps)
