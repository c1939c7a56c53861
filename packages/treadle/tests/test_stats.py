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
    text = str(now)
    for part in ("graphs: 1", "print at f.py:3", "x.shape[0] == 3", "in eager: why", "skipped: g", "1 hits"):
        assert part in text
    recorder.reset()
    assert recorder().graphs == 0
