"""What the guards "call" call: objects that are equal where they ask the same, so that two such guards of one object are one."""

from __future__ import annotations

from typing import Any


class GuardCallable:
    """Called with what is guarded; whether the guard holds. `question`: what is asked, of those of one class, a value with a hash."""

    __slots__ = ("question",)
    compares_by_value = True

    def __init__(self, question: Any = None):
        self.question = question

    def __call__(self, value: Any) -> bool:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.question == self.question  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), self.question))
