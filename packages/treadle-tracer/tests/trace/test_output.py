"""Programs that print, warn and log: one graph, and the same output, in the same order, as Python's."""

from __future__ import annotations

import collections
import contextlib
import io
import logging
import sys
import warnings

import pytest
import torch
from compile_runs import compiled

logger = logging.getLogger("treadle.tests.output")
logger.propagate = False
quiet = logging.getLogger("treadle.tests.output.quiet")
quiet.setLevel(logging.CRITICAL)
history, counts = [], collections.Counter()


class Point:
    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return f"Point({self.x!r})"


def constants(x, i):
    y = x + 1
    print("a", 1, 2.5, None, True, sep="-", end="!\n")
    return y * 2


def containers_as_they_were(x, i):
    items, table = [1, 2], {"a": (x.shape, i)}
    print(items, table, x.shape, x.dtype)
    items.append(3)
    table["b"] = 4
    print(items, table)
    return x * len(items)


def tensors_as_they_were(x, i):
    y = x + 1
    print(y, [y, {"y": y[0]}], f"{y.sum()} {y.mean():.3f}", str(y), repr(y[:1]))
    y += 1
    print(y)
    return y


def numbers(x, i):
    total = x.sum().item()
    print(f"step {i}: {total:.4f} {int(total)} {i:03d} {i!r:>4}", "%d of %s, %.2f" % (i, "n", total))
    print("{} {:.2f} {n}".format(i, total, n=int(total)), "-".join([str(i), f"{total:.1f}"]), "i=" + str(i))
    return x * i


def objects(x, i):
    p = Point(i)
    print(p, [1], f"{p} {p!r} {p!s}", Point)
    p.x = 7
    print(p)
    return x + p.x


def to_streams(x, i):
    print("err", file=sys.stderr, flush=True)
    sys.stdout.write("written\n")
    sys.stdout.flush()
    return x + sys.stderr.write("back\n")


def warns(x, i):
    warnings.warn("careful")
    warnings.warn(f"sum {x.sum().item():.1f}", DeprecationWarning)

    def deprecated():
        warnings.warn("old", FutureWarning, stacklevel=2)

    deprecated()
    return x * 2


def logs(x, i):
    logger.info("shape %s, %d, %.2f", x.shape, i, x.mean().item())
    logger.debug("%s", x)
    logger.log(logging.ERROR, "level")
    quiet.warning("not seen %s", x)
    logger.warning(Point(i))

    def inner():
        logger.error("inner", stacklevel=2)

    inner()
    return x * 2


def in_order(x, i):
    print("one")
    warnings.warn("two")
    logger.info("three")
    for k in range(3):
        print(k, x.sum())
        x = x * 2
    history.append(f"{x.sum().item():.1f}")
    counts.update(["call", "call"])
    return x


def before_an_exception(x, i):
    print("before")
    if (x > 4).any():
        raise ValueError("large")
    print("after")
    return x * 2


def texts_kept(x, i):
    text = f"{x.sum().item():.2f}"
    return {"text": text, "more": text + "!", "tensor": str(x)}, x + 1


PROGRAMS = (
    constants,
    containers_as_they_were,
    tensors_as_they_were,
    numbers,
    objects,
    to_streams,
    warns,
    logs,
    in_order,
    before_an_exception,
    texts_kept,
)


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.name, record.levelname, record.getMessage(), record.funcName, record.lineno))


def observed(function, calls):
    """What the calls return, raise, print, warn and log."""
    history.clear()
    counts.clear()
    out, records, found = io.StringIO(), Records(), []
    logger.addHandler(records)
    logger.setLevel(logging.INFO)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as told,
        ):
            warnings.simplefilter("always")
            for args in calls:
                try:
                    found.append(repr(function(*args)))
                except ValueError as error:
                    found.append(repr(error))
    finally:
        logger.removeHandler(records)
    lines = [(str(w.message), w.category, w.lineno, w.filename) for w in told]
    return found, out.getvalue(), lines, records.seen, list(history), dict(counts)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_output_is_no_break(program):
    calls = [(torch.arange(4.0) + k % 3, k) for k in range(3, 8)]
    fast, recorder = compiled(program)
    assert observed(fast, calls) == observed(program, calls)
    assert recorder.codes() == [] and len(recorder.graphs) <= 3


def test_a_warning_that_is_an_exception_is_raised_where_it_is():
    def program(x, total):
        total.add_(1)
        warnings.warn("careful")
        total.add_(1)
        return x

    fast, _ = compiled(program)
    total = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(torch.ones(2), total)
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            fast(torch.ones(2), total)
    assert total.item() == 3


class Loader:
    def __init__(self):
        self.asked = []

    def get_source(self, name):
        self.asked.append(name)
        raise ImportError(name)


@pytest.mark.parametrize("given", (Loader, None), ids=("with a loader", "with no loader"))
def test_a_warning_does_not_ask_for_the_source(given):
    """From Python 3.12 on, `warnings.warn_explicit` complains about globals without a loader."""
    loader = given and given()
    outside = {"__name__": "of_the_test", "__loader__": loader, "__spec__": None, "warnings": warnings}
    if loader is None:
        del outside["__loader__"], outside["__spec__"]
    exec(compile("def program(x):\n    warnings.warn('careful')\n    return x + 1", "<no file>", "exec"), outside)
    fast, said = compiled(outside["program"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fast(torch.ones(1))
    assert [str(warning.message) for warning in seen] == ["careful"] and not said.breaks
    assert loader is None or loader.asked == []


MAY_RAISE = {
    "embedding": (lambda t: torch.nn.functional.embedding(t, torch.ones(3, 2)), torch.tensor([1]), torch.tensor([9])),
    "index": (lambda t: torch.ones(3)[t], torch.tensor([1]), torch.tensor([9])),
    "inverse": (torch.linalg.inv, torch.eye(2), torch.zeros(2, 2)),
    "loss": (lambda t: torch.nn.functional.nll_loss(torch.ones(1, 3), t), torch.tensor([1]), torch.tensor([9])),
    "random": (torch.bernoulli, torch.ones(2), torch.full((2,), 3.0)),
}


@pytest.mark.parametrize("name", MAY_RAISE)
def test_a_graph_that_writes_and_may_raise_prints_before_it_raises(name, capsys):
    function, good, bad = MAY_RAISE[name]

    def program(x, total):
        total.add_(1)
        print("computing")
        return function(x)

    fast, recorder = compiled(program)
    total = torch.zeros(1)
    fast(good, total)
    with pytest.raises((IndexError, RuntimeError)):
        fast(bad, total)
    assert capsys.readouterr().out == "computing\n" * 2 and total.item() == 2
    assert recorder.graphs


class Flushed(io.StringIO):
    flushes = 0

    def flush(self):
        self.flushes += 1


def patched_stream():
    stream, written = io.StringIO(), []
    stream.write = written.append
    stream.flushes = written
    return stream


@pytest.mark.parametrize("make", [Flushed, patched_stream], ids=["class", "instance"])
def test_methods_of_the_program_on_a_stream_run_at_once(make):
    def program(stream, x):
        print("a", file=stream, flush=True)
        return x + (len(stream.flushes) if isinstance(stream.flushes, list) else stream.flushes), stream.getvalue()

    fast, _ = compiled(program)
    for _ in range(2):
        assert repr(fast(make(), torch.ones(1))) == repr(program(make(), torch.ones(1)))


def test_a_stream_of_the_program_is_written_to_at_once():
    class Stream(io.StringIO):
        lines = 0

        def write(self, text):
            self.lines += text == "\n"
            return super().write(text)

    stream = Stream()

    def program(x):
        y = x + stream.lines
        print("a", file=stream)
        return y * stream.lines

    fast, recorder = compiled(program)
    assert [fast(torch.ones(1)).item() for _ in range(2)] == [1.0, 4.0]
    assert "output" in recorder.codes()


def redirects_prints(x, stream):
    with contextlib.redirect_stdout(stream):
        print("a", x.sum())
    return x + 1, stream.getvalue()


def redirects_warnings(x, stream):
    with contextlib.redirect_stderr(stream):
        warnings.warn("a")
    return x + 1, stream.getvalue()


def redirects_after_output(x, stream):
    warnings.warn("a")
    logger.warning("b")
    print("c", file=sys.stderr)
    sys.stderr = stream
    return x + 1


def disables_after_a_record(x, stream):
    logger.warning("a")
    logger.disabled = True
    return x + 1


def clears_handlers_after_a_record(x, stream):
    logger.warning("a")
    logger.handlers.clear()
    return x + 1


def clears_handlers_before_a_record(x, stream):
    logger.handlers.clear()
    logger.warning("a")
    return x + 1


REDIRECTIONS = (
    redirects_prints,
    redirects_warnings,
    redirects_after_output,
    disables_after_a_record,
    clears_handlers_after_a_record,
    clears_handlers_before_a_record,
)


@pytest.mark.parametrize("program", REDIRECTIONS, ids=lambda f: f.__name__)
def test_output_goes_where_it_went_when_it_was_made(program, monkeypatch):
    runs = []
    for function in (program, compiled(program)[0]):
        for _ in range(2):
            records, outer, inner = Records(), io.StringIO(), io.StringIO()
            monkeypatch.setattr(logger, "handlers", [records])
            monkeypatch.setattr(logger, "disabled", False)
            monkeypatch.setattr(sys, "stderr", outer)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = lambda message, *place: sys.stderr.write(f"{message}\n")
                result = function(torch.ones(2), inner)
            runs.append((repr(result), outer.getvalue(), inner.getvalue(), records.seen))
    assert runs[:2] == runs[2:]
