"""What a program asks about its thread and its process is asked again in every call."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from compile_runs import compiled

SEEN: dict[int, list[int]] = {}


def counted_by_thread(x):
    ident = threading.get_ident()
    if ident in SEEN:
        x = x + 1
    SEEN.setdefault(ident, []).append(len(SEEN))
    return x * 2


@pytest.mark.parametrize("ask", [threading.get_ident, threading.get_native_id, os.getpid], ids=lambda f: f.__name__)
def test_the_answer_is_a_constant_of_one_graph(ask):
    def program(x):
        return x + 1, ask(), ask() == ask()

    fast, said = compiled(program, fullgraph=True)
    for _ in range(3):
        assert fast(torch.ones(2))[1:] == program(torch.ones(2))[1:]
    assert (len(said.graphs), said.recompiles) == (1, [])


def test_other_threads_have_other_answers():
    outcomes = {}
    for function in (counted_by_thread, compiled(counted_by_thread)[0]):
        SEEN.clear()
        found = []

        def calls(function=function, found=found):
            found.extend(function(torch.ones(1)).item() for _ in range(3))

        calls()
        for _ in range(12):
            thread = threading.Thread(target=calls)
            thread.start()
            thread.join()
        outcomes[function] = found, sorted(SEEN.values())
    first, second = outcomes.values()
    assert sum(map(len, first[1])) == sum(map(len, second[1])) == 39
    # Idents of threads that have ended may come again, so only the first thread's calls are the same in both runs.
    assert first[0][:3] == second[0][:3] == [2.0, 4.0, 4.0]
    assert all(value in (2.0, 4.0) for value in second[0])
    assert second[0].count(2.0) == len(second[1])


def test_many_threads_do_not_compile_once_each():
    fast, said = compiled(lambda x: x + (threading.get_native_id() > 0))
    threads = [threading.Thread(target=fast, args=(torch.ones(1),)) for _ in range(12)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len(said.graphs) <= 3
