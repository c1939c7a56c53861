"""A size of 1 in calls of another kind, such as the steps behind a prompt, gets an entry of its own; in calls alike it shares one."""

from __future__ import annotations

import torch
from compile_runs import compiled


def kinds(x: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
    """A prompt has no state; a step has."""
    return x.cumsum(0) if state is None else x * 2 + state.sum(0)


def sizes_of(graphs: list[torch.fx.GraphModule]) -> list[str]:
    """The first size of the first input of each graph: a number, or "n" for any."""
    found = []
    for gm in graphs:
        size = next(iter(gm.graph.find_nodes(op="placeholder"))).meta["example_value"].shape[0]
        found.append(str(size) if isinstance(size, int) else "n")
    return found


def check(fast, *args):
    torch.testing.assert_close(fast(*args), kinds(*args))


def test_steps_behind_prompts_of_several_lengths():
    fast, recorder = compiled(kinds)
    state = torch.ones(3, 2)
    for n in (5, 7):
        check(fast, torch.randn(n, 2))
        for _ in range(3):
            check(fast, torch.randn(1, 2), state)
    assert sizes_of(recorder.graphs) == ["5", "1", "n"]


def test_a_step_of_several_tokens_generalises_again():
    fast, recorder = compiled(kinds)
    state = torch.ones(3, 2)
    check(fast, torch.randn(5, 2))
    for n in (1, 3, 1, 4, 2):
        check(fast, torch.randn(n, 2), state)
    assert sizes_of(recorder.graphs) == ["5", "1", "n"]


def test_a_state_that_grows():
    """The step is traced again for any length of the state, still for one token."""
    fast, recorder = compiled(kinds)
    check(fast, torch.randn(5, 2))
    for length in (3, 4, 5):
        check(fast, torch.randn(1, 2), torch.ones(length, 2))
    check(fast, torch.randn(6, 2))
    check(fast, torch.randn(1, 2), torch.ones(9, 2))
    assert sizes_of(recorder.graphs) == ["5", "1", "1", "n"]


def test_calls_alike_share_an_entry():
    fast, recorder = compiled(kinds)
    for n in (5, 1, 3, 1):
        check(fast, torch.randn(n, 2))
    assert sizes_of(recorder.graphs) == ["5", "n"]
