"""What happens around every pass of a compile: time, the pass's name in errors, its contract, its dump."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle_codegen.errors import CodegenError, InternalError
from treadle_codegen.options import CodegenOptions


class Passes:
    """Runs the passes of one compile. `seconds` by the name of the pass; a pass that runs twice adds up."""

    def __init__(self, options: CodegenOptions) -> None:
        self.seconds: dict[str, float] = {}
        self._verify = options.verify
        self._directory = _new_directory(options.dump_passes) if options.dump_passes is not None else None
        self._dumped = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The boundary that turns a pass's exceptions into InternalErrors with its name."""
        start = time.perf_counter()
        try:
            yield
        except CodegenError:
            raise
        except Exception as error:  # named boundary: context is added, nothing is swallowed
            raise InternalError(name, f"{type(error).__name__}: {error}") from error
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def check(self, name: str, text: Callable[[], str], problems: Callable[[], list[str]]) -> None:
        """Dump what the pass made, and raise InternalError if it breaks its contract, as the options say."""
        path = ""
        if self._directory is not None:
            path = str(self._directory / f"{self._dumped:02d}-{name.replace(' ', '-')}.txt")
            Path(path).write_text(text())
            self._dumped += 1
        if self._verify:
            require(name, problems(), path)


def require(name: str, problems: list[str], dump_path: str = "") -> None:
    """Raise InternalError with the first problems, if there are any."""
    if problems:
        raise InternalError(name, "; ".join(problems[:5]), dump_path=dump_path)


def _new_directory(parent: Path) -> Path:
    """A directory of this graph's own: `graph-0`, `graph-1`, ..."""
    parent.mkdir(parents=True, exist_ok=True)
    for k in itertools.count():
        try:
            (parent / f"graph-{k}").mkdir()
        except FileExistsError:
            continue
        return parent / f"graph-{k}"
    raise AssertionError
