from __future__ import annotations

from treadle.stats import Break, EagerGraph, Recompile, StatsRecorder


def test_counts_and_snapshots():
    recorder = StatsRecorder()
    before = recorder()
    recorder.add(graph_nodes=7)
    recorder.add(graph_break=Break("print", "a call of print", "f.py:3"), cache_hits=1)
    recorder.add(recompile=Recompile("f", "x.shape[0] == 3"), eager_graph=EagerGraph("why"), skipped="g")
    with recorder.phase("trace"):
        pass
    with recorder.phase("trace"):
        pass
    now = recorder()
    assert before.graphs == 0 and before.seconds == {}
    assert (now.graphs, now.graph_nodes, len(now.breaks), now.cache_hits) == (1, (7,), 1, 1)
    assert list(now.seconds) == ["trace"]
    recorder.add(specialised_shapes=2)
    recorder.add_seconds("trace", 1.5 - now.seconds["trace"])
    assert (
        str(recorder())
        == """\
graphs: 1 (nodes: 7)
break: print at f.py:3: a call of print
recompile: f: x.shape[0] == 3
in eager: why
skipped: g
seconds in trace: 1.500
kernel cache: 1 hits, 0 misses
specialised shapes: 2"""
    )
    recorder.reset()
    assert recorder().graphs == 0
