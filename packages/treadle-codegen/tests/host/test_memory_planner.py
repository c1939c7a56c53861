"""Workspaces and how their memory is planned: growing, fitting, sharing Fits, pools, and which Fits are kept."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

import treadle_codegen.host.memory_planner as planner_module
from treadle_codegen.host.memory_planner import _FITS_KEPT, MemoryPlanner
from treadle_codegen.host.workspace import NO_MEMORY, Fit
from treadle_codegen.ir.loops import Buffer, BufferKind, View
from treadle_codegen.schedule.memory import plan_arena
from treadle_codegen.targets.table import TARGETS
from treadle_shapes.expr import symbol

N = symbol("n")
CPP = TARGETS["cpp"]


def planner(**changes: Any) -> MemoryPlanner:
    """Two rows of `n` floats that are live one after the other, the first one with a slot; a number in slot 2."""
    buffers = {
        name: Buffer(name, torch.float32, (2, N), (N, 1), BufferKind.TEMP)  # type: ignore[arg-type]
        for name in ("a", "b")
    }
    given: dict[str, Any] = {
        "buffers": buffers,
        "spans": {"a": (0, 1), "b": (2, 3)},
        "keys": ["b", View("a", (N,), (1,), N)],
        "slots": {"a": 1, "n": 2},
        "symbols": (N,),
        "pool": [torch.float32],
        "unfitted": Fit((), NO_MEMORY, (None,)),
        "abi": CPP.abi,
        "allocation": CPP.allocation(torch.device("cpu")),
        "alignment": 64,
        "verify": True,
    }
    return MemoryPlanner(**{**given, **changes})


def fit_at(made: MemoryPlanner, n: int) -> Fit:
    return made.fits.get((n,)) or made.keep(Fit((n,), made.layout((n,)), (n,), [(2, n)]))


def test_fitting_fills_the_table_and_makes_views() -> None:
    made = planner()
    workspace = made.new()
    made.fit(workspace, fit_at(made, 20))
    assert workspace.fitted.sizes == (20,)
    assert workspace.table[1] == workspace.arena.data_ptr() + workspace.fitted.layout.plan.offsets["a"]
    assert workspace.table[2] == 20
    whole, part = workspace.views
    assert whole.shape == (2, 20) and part.shape == (20,) and part.dtype == torch.float32
    assert part.data_ptr() == workspace.table[1] + 20 * 4


def test_buffers_one_after_the_other_share_the_arena() -> None:
    layout = planner().layout((1000,))
    assert layout.plan.offsets["a"] == layout.plan.offsets["b"] == 0
    assert 8000 <= layout.plan.size < 8064


def test_the_arena_grows_and_never_shrinks() -> None:
    made = planner()
    workspace = made.new()
    made.fit(workspace, fit_at(made, 1000))
    large = workspace.arena
    made.fit(workspace, fit_at(made, 10))
    assert workspace.arena is large and workspace.views[0].shape == (2, 10)
    made.fit(workspace, fit_at(made, 1000))
    assert workspace.arena is large
    made.fit(workspace, fit_at(made, 2000))
    assert workspace.arena is not large and workspace.known_views.keys() == {(2000,)}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an item for every plan that is made: the bytes of its arena."""
    made = list[int]()

    def counted(*args: Any) -> Any:
        plan = plan_arena(*args)
        made.append(plan.size)
        return plan

    monkeypatch.setattr(planner_module, "plan_arena", counted)
    return made


def test_one_plan_serves_smaller_sizes_as_long_as_it_is_not_mostly_empty(plans: list[int]) -> None:
    made = planner()
    workspace = made.new()
    for n, planned in ((40, 1), (39, 1), (21, 1), (30, 1), (19, 2), (41, 3), (33, 3), (12, 3), (40, 3)):
        made.fit(workspace, fit_at(made, n))
        assert len(plans) == planned
        whole, part = workspace.views
        assert whole.shape == (2, n) and part.shape == (n,)
        whole.fill_(n)
        assert part.data_ptr() == workspace.table[1] + 4 * n


def test_sizes_that_grow_are_planned_now_and_then(plans: list[int]) -> None:
    made = planner()
    workspace = made.new()
    for n in range(100, 1000):
        made.fit(workspace, fit_at(made, n))
        whole, part = workspace.views
        assert whole.shape == (2, n) and part.shape == (n,)
    assert len(plans) < 15  # each but the first leaves a quarter more
    assert plans[-1] < 1.5 * 1000 * 4 * 2


def test_no_room_is_left_in_large_arenas(plans: list[int]) -> None:
    made = planner()
    for n in (10**7, 10**7 + 1):
        made.layout((n,))
    assert plans[1] - plans[0] <= 1024


def test_views_follow_a_fit_that_is_made_again_with_another_plan() -> None:
    buffers = {
        name: Buffer(name, torch.float32, shape, (1,), BufferKind.TEMP)  # type: ignore[arg-type]
        for name, shape in (("a", (N,)), ("b", (30,)))
    }
    both = {
        "buffers": buffers,
        "spans": {"a": (0, 1), "b": (0, 1)},
        "keys": ["a", "b"],
        "slots": {"a": 1, "n": 2, "b": 3},
    }
    made = planner(**both)
    workspace = made.new()
    # The arena is large enough from the first sizes on. At last, the plan for 40 serves 20, too, and `a` comes first in it.
    for n in (100, 20, 40, 20):
        made.fits.clear()
        made.fit(workspace, fit_at(made, n))
        assert [view.data_ptr() for view in workspace.views] == [workspace.table[1], workspace.table[3]]
        made._layouts = made._layouts[:1]


def test_many_sizes_without_a_function_and_with_one() -> None:
    """Calls at the first sizes evaluate expressions, later ones run a function made of them."""
    made = planner(keys=["b", View("a", (N,), (1,), N), View("b", (2, N // 2), (N, 2), 1)])  # type: ignore[arg-type]
    workspace = made.new()
    for n in (8, 9, 30, 31, 7, 0, 1, 64):
        made.fit(workspace, fit_at(made, n))
        whole, part, strided = workspace.views
        start = workspace.arena.data_ptr() + workspace.fitted.layout.plan.offsets["b"]
        assert (whole.shape, whole.stride(), whole.data_ptr() - start) == ((2, n), (n, 1), 0) or n == 0
        assert part.shape == (n,) and (part.data_ptr() == workspace.table[1] + 4 * n or n == 0)
        assert (strided.shape, strided.stride(), strided.storage_offset()) == ((2, n // 2), (n, 2), 1)


def test_views_are_made_once_per_sizes() -> None:
    made = planner()
    workspace = made.new()
    made.fit(workspace, fit_at(made, 50))
    first = workspace.views
    made.fit(workspace, fit_at(made, 40))
    made.fit(workspace, fit_at(made, 50))
    assert workspace.views is first


def test_two_workspaces_share_a_fit_and_no_memory() -> None:
    made = planner()
    one, other = made.new(), made.new()
    made.fit(one, fit_at(made, 30))
    made.fit(other, fit_at(made, 30))
    assert one.fitted is other.fitted and one.arena.data_ptr() != other.arena.data_ptr()
    assert one.argument != other.argument


def test_a_graph_with_static_sizes_is_fitted_at_once() -> None:
    static = {"a": Buffer("a", torch.float32, (3,), (1,), BufferKind.TEMP)}
    made = planner(buffers=static, spans={"a": (0, 0)}, keys=["a"], slots={"a": 1}, symbols=())
    assert made.new().views[0].shape == (3,)
    assert made.new().fitted is made.fits[()]


def test_the_table_holds_pointers_integers_and_doubles() -> None:
    made = planner(slots={"a": 1, "f": 2})
    workspace = made.new()
    made.fit(workspace, made.keep(Fit((4,), made.layout((4,)), (), [(2, 0.5)])))
    assert workspace.floats[2] == 0.5
    assert ctypes.c_double.from_address(workspace.argument + 16).value == 0.5
    assert workspace.table[0] == ctypes.addressof(workspace.error)


def test_a_failing_fit_leaves_the_workspace_unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planner()
    workspace = made.new()
    made.fit(workspace, fit_at(made, 8))

    def out_of_memory(*_: Any, **__: Any) -> torch.Tensor:
        raise MemoryError

    workspace._empty = out_of_memory
    with pytest.raises(MemoryError):
        made.fit(workspace, fit_at(made, 10**6))
    assert workspace.fitted is made.unfitted


def test_a_piece_of_the_pool_grows_and_keeps_its_address() -> None:
    workspace = planner().new()
    assert workspace.room(0, 0) == 0
    at = workspace.room(0, 100)
    assert at == workspace.pool[0].data_ptr() and workspace.pool[0].numel() >= 100
    assert workspace.room(0, 100) == workspace.room(0, 7) == at
    workspace.room(0, 10_000)
    assert workspace.pool[0].numel() >= 10_000


def test_the_fits_with_the_least_time_are_dropped() -> None:
    made = planner()
    for n in range(1, _FITS_KEPT + 1):
        fit_at(made, n).spent = float(n)
    fit_at(made, 1000)
    assert (1000,) in made.fits and (_FITS_KEPT,) in made.fits and (1,) not in made.fits
    assert len(made.fits) == _FITS_KEPT // 2 + 1


def test_the_first_fit_for_some_sizes_wins() -> None:
    made = planner()
    first = fit_at(made, 5)
    assert made.keep(Fit((5,), NO_MEMORY, ())) is first


def test_using_other_entry_points_changes_the_state_at_once() -> None:
    generic, special = (lambda argument: None,), (lambda argument: None,)
    fit = Fit((4,), NO_MEMORY, ("head",), (), generic)
    state = fit.state
    fit.use(special)
    assert state == ("head", *generic) and fit.state == ("head", *special)
