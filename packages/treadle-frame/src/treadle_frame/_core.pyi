# ruff: noqa: N801  (names of the C extension's own)
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Final, TypeAlias, final

from treadle_frame.guards import Check

@final
class Sentinel: ...

ROOTS: Final[tuple[str, ...]]
ACCESSORS: Final[tuple[str, ...]]
OPS: Final[tuple[str, ...]]
RUN_CACHED: Final[Sentinel]
SKIP: Final[Sentinel]
RUN_ONCE: Final[Sentinel]
RUN_ONCE_BELOW: Final[Sentinel]
SKIP_BELOW: Final[Sentinel]

_Values: TypeAlias = tuple[str | tuple[str, int | str], ...]
_FastPath: TypeAlias = tuple[Callable[..., Any], _Values, bool] | tuple[Callable[..., Any], _Values, bool, bool]
_HasCode: TypeAlias = CodeType | FunctionType | MethodType | Callable[..., Any]

@final
class FrameInfo:
    @property
    def code(self) -> CodeType: ...
    @property
    def globals(self) -> dict[str, Any]: ...
    @property
    def builtins(self) -> dict[str, Any]: ...
    @property
    def closure(self) -> tuple[CellType, ...] | None: ...
    @property
    def locals(self) -> dict[str, Any]: ...
    @property
    def function(self) -> FunctionType: ...

@final
class GuardProgram:
    def __new__(cls, checks: Sequence[Check]) -> GuardProgram: ...
    def __len__(self) -> int: ...
    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def memo(self) -> dict[str, int]: ...
    def check(
        self,
        locals: Mapping[str, Any],
        globals: Mapping[str, Any] | None = None,
        closure: tuple[CellType, ...] | Mapping[str, CellType] | None = None,
        builtins: Mapping[str, Any] | None = None,
    ) -> bool: ...
    def why_fails(
        self,
        locals: Mapping[str, Any],
        globals: Mapping[str, Any] | None = None,
        closure: tuple[CellType, ...] | Mapping[str, CellType] | None = None,
        builtins: Mapping[str, Any] | None = None,
    ) -> str | None: ...

@final
class Entry:
    payload: Any
    def __new__(
        cls,
        code: CodeType,
        guard: GuardProgram,
        payload: Any = None,
        fast_path: _FastPath | None = None,
    ) -> Entry: ...
    @property
    def code(self) -> CodeType: ...
    @property
    def guard(self) -> GuardProgram: ...
    @property
    def fast_path(self) -> _FastPath | None: ...
    @property
    def hits(self) -> int: ...

_Answer: TypeAlias = Entry | Sentinel
Handler: TypeAlias = Callable[[FrameInfo], _Answer]

@final
class dispatcher:
    __wrapped__: Callable[..., Any]
    __name__: str
    __qualname__: str
    def __new__(
        cls,
        fn: Callable[..., Any],
        handler: Handler | Sentinel,
        followed: FunctionType = ...,
        refresh: Callable[[], Any] = ...,
    ) -> dispatcher: ...
    @property
    def handler(self) -> Handler | Sentinel: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

def set_handler(handler: Handler | Sentinel | None, /) -> Handler | Sentinel | None: ...
def get_handler() -> Handler | Sentinel | None: ...
def is_installed() -> bool: ...
def entries(code: _HasCode, /) -> tuple[Entry, ...]: ...
def add_entry(code: _HasCode, entry: Entry, /) -> None: ...
def remove_entry(code: _HasCode, entry: Entry, /) -> bool: ...
def reset(code: _HasCode | None = None, /) -> None: ...
def skip(code: _HasCode, /) -> None: ...
def unskip(code: _HasCode, /) -> None: ...
def is_skipped(code: _HasCode, /) -> bool: ...
def counters() -> dict[str, int]: ...
def native_numbers(
    objects: Sequence[Any], types: type | tuple[type, ...], handle_offset: int, functions: tuple[int, ...], /
) -> bytes: ...
def native_memory(
    objects: Sequence[Any], types: type | tuple[type, ...], handle_offset: int, function: int, sizes: tuple[int, ...], /
) -> bytes: ...
