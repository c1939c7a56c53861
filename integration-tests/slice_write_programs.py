"""Random programs that write to parts of tensors, as Python text: every kind of region, of new tensors and of inputs, views held on to,
values read before and after, chains and loops."""

from __future__ import annotations

import random

SIZES = (4, 5, 6)
METHODS = (
    ".diagonal(0, 1, 2).fill_(2)",
    ".view(-1)[3:40:3].mul_(3)",
    ".transpose(0, 2)[1:3].add_(1)",
    ".select(1, 2).zero_()",
    ".permute(1, 2, 0)[0, 1:].neg_()",
    ".narrow(2, 1, 3).clamp_(0)",
    ".unbind(1)[0].add_(4)",
    ".copy_(y + 1)",
)


class Writer:
    """Text of one program under construction. `tensors` are names of tensors of shape SIZES, `views` names of views of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tensors = ["x", "y"]
        self.written = ["x", "y"]
        self.lines: list[str] = []
        self.values: list[str] = []

    def region(self) -> tuple[str, list[int]]:
        """An index and the shape of what it selects."""
        parts, shape = [], []
        for size in SIZES[: self.random.randint(1, 3)]:
            kind = self.random.choice(["slice", "slice", "index", "step", "all", "end"])
            low = self.random.randint(0, size - 2)
            high = self.random.randint(low + 1, size)
            if kind == "index":
                parts.append(str(self.random.choice([low, low - size])))
            elif kind == "all":
                parts.append(":")
                shape.append(size)
            elif kind == "end":
                parts.append(f"{low}:")
                shape.append(size - low)
            elif kind == "step":
                parts.append(f"{low}::2")
                shape.append((size - low + 1) // 2)
            else:
                parts.append(f"{low}:{high}" if self.random.random() < 0.7 else f"{low}:{high - size or size}")
                shape.append(high - low)
        if len(parts) < 3 and self.random.random() < 0.3:
            parts.append("...")
        return ", ".join(parts), shape + list(SIZES[len([p for p in parts if p != "..."]) :])

    def like(self, shape: list[int]) -> str:
        """A value of a shape: a number, a part of a tensor, or something computed from parts."""
        kind = self.random.choice(["number", "part", "part", "sum", "row", "computed"])
        if kind == "number" or not shape:
            return f"{self.random.randint(-3, 3)}.5"
        if kind == "row":
            return f"{self.random.choice(self.tensors)}.flatten()[{self.random.randint(0, 9)}:][: {shape[-1]}].clone()"
        parts = [self.part(shape), self.part(shape)]
        if kind == "part":
            return f"{parts[0]}.clone()"  # eager refuses, or does not define, copies between parts that overlap
        return f"{parts[0]} * 0.5 + {parts[1]}" if kind == "sum" else f"torch.sin({parts[0]})"

    def part(self, shape: list[int]) -> str:
        name = self.random.choice(self.tensors)
        size = 1
        for n in shape:
            size *= n
        first = self.random.randint(0, 120 - size)
        if len(shape) == 3 and self.random.random() < 0.7:
            starts = [self.random.randint(0, s - n) for s, n in zip(SIZES, shape, strict=True)]
            return f"{name}[{', '.join(f'{a}:{a + n}' for a, n in zip(starts, shape, strict=True))}]"
        return f"{name}.reshape(-1)[{first}:{first + size}].view({shape})"

    def step(self) -> None:
        choice = self.random.choice(
            ["new", "write", "write", "write", "add", "view", "read", "method", "reversed", "loop"]
        )
        name = self.random.choice(self.written)
        if choice == "new":
            fresh = f"t{len(self.lines)}"
            source = self.random.choice(self.tensors)
            made = [
                "torch.zeros_like({0})",
                "{0}.clone()",
                "{0} * 2",
                "torch.tanh({0})",
                "{0}.sum(0, keepdim=True) + {0}",
            ]
            self.lines.append(f"{fresh} = " + self.random.choice(made).format(source))
            self.tensors.append(fresh)
            self.written.append(fresh)
        elif choice in ("write", "add"):
            index, shape = self.region()
            self.lines.append(
                f"{name}[{index}] {self.random.choice(['+=', '*=']) if choice == 'add' else '='} {self.like(shape)}"
            )
        elif choice == "view":
            index, shape = self.region()
            self.lines.append(f"v = {name}[{index}]")
            change = self.random.choice(["mul_(2)", "copy_(torch.ones(()))", "fill_(3)", f"add_({self.like(shape)})"])
            self.lines.append(f"v.{change}")
            if self.random.random() < 0.5:
                self.lines += ["v.sub_(1)", f"{name}[0] = 7"]
                self.read("v.sum()")
        elif choice == "read":
            index, _ = self.region()
            self.read(
                self.random.choice([f"{name}[{index}] * 3", f"{name}.sum(1)", f"{name}[{index}]", f"{name}.flip(0)"])
            )
        elif choice == "method":
            self.lines.append(name + self.random.choice(METHODS))
        elif choice == "reversed":
            self.lines.append(
                f"{name}[1:] = {name}[:-1].clone()"
                if self.random.random() < 0.5
                else f"{name}[:, :-1] += {name}[:, 1:] * 2"
            )
        else:
            self.lines.append(f"for i in range(1, {SIZES[1]}): {name}[:, i] += 0.5 * {name}[:, i - 1]")

    def read(self, text: str) -> None:
        fresh = f"r{len(self.lines)}"
        self.lines.append(f"{fresh} = {text}")
        self.values.append(fresh)

    def text(self) -> str:
        for _ in range(self.random.randint(2, 9)):
            self.step()
        chosen = [name for name in [*self.tensors, *self.values] if self.random.random() < 0.6] or ["x"]
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def f(x, y):\n{body}    return ({', '.join(chosen)},)\n"


def program(seed: int) -> str:
    """The text of a function `f(x, y)` of two tensors of shape SIZES, which it may change."""
    return Writer(seed).text()
