"""Classes with every kind of method, for traced programs."""

from __future__ import annotations


class Base:
    kind = "base"

    def __init__(self, v):
        self.v = v

    def f(self, x):
        return x + self.v

    @property
    def p(self):
        return self.v * 2

    @p.setter
    def p(self, q):
        self.v = q

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def st(a):
        return a * 3

    def __getattr__(self, n):
        if n.startswith("dyn_"):
            return n[4:]
        raise AttributeError(n)

    def __eq__(self, o):
        return isinstance(o, Base) and o.v == self.v

    def __hash__(self):
        return hash(self.v)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i >= 3:
            raise IndexError(i)
        return self.v * i

    def __call__(self, x):
        return x - 1

    def __add__(self, o):
        return ("add", o)

    def __radd__(self, o):
        return ("radd", o)

    def __contains__(self, q):
        return q == 7

    def __bool__(self):
        return self.v > 0

    def __repr__(self):
        return f"Base({self.v})"


class Derived(Base):
    kind = "derived"

    def __init__(self, v, w):
        super().__init__(v)
        self.w = w

    def f(self, x):
        return super().f(x) * self.w

    @classmethod
    def make(cls, v):
        return super().make.__func__(cls, v) if False else cls(v, 2)
