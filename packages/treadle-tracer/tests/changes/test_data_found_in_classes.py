"""Data that a lookup finds in a class: None among it, what `super()` finds, and what data descriptors hide or do not."""

from __future__ import annotations

from mutate_runs import check, collect, ones

VALUES = (None, 4, 5, None, 0, True, 2.5, "a", (1, 2), None)


def none_in_the_class_of_an_instance():
    class Holder:
        k = None

    holder = Holder()

    def f(x):
        return x + 1 if holder.k is None else x - 1, holder.k or 7

    for value in VALUES:
        Holder.k = value
        yield f, ones()


def none_in_a_base_class():
    class Base:
        k = None

    class Derived(Base):
        pass

    derived = Derived()

    def f(x):
        return x * (2 if derived.k is None else 3), Derived.k

    yield f, ones()
    Base.k = 1
    yield f, ones()
    Derived.k = None
    yield f, ones()
    Base.k = 2
    yield f, ones()
    Derived.k = 3
    yield f, ones()
    del Derived.k
    yield f, ones()


def none_in_a_metaclass():
    class Meta(type):
        k = None

    class K(metaclass=Meta):
        pass

    def f(x):
        return x * (2 if K.k is None else 3)

    yield f, ones()
    Meta.k = 1
    yield f, ones()
    K.k = None
    yield f, ones()


def _families():
    class Base:
        k = 1

    class Between(Base):
        pass

    class Derived(Between):
        k = 2

        def own(self, x):
            return x, super().k

        @classmethod
        def of_class(cls, x):
            return x * 2, super().k

        @staticmethod
        def of_none(x):
            return x * 3, super(Derived, Derived).k, super(Derived, Derived()).k

    return Base, Between, Derived


def _data_behind_super(method):
    def program():
        Base, Between, Derived = _families()
        derived = Derived()

        def f(x):
            return getattr(derived, method)(x + 1)

        yield f, ones()
        for value in VALUES:
            Base.k = value
            yield f, ones()
        Derived.k = 9
        yield f, ones()
        Between.k = 5
        yield f, ones()
        Between.k = 6
        yield f, ones()
        del Between.k
        yield f, ones()
        Base.k = property(lambda self: 8)
        yield f, ones()

    return program()


def data_behind_super_of_an_instance():
    yield from _data_behind_super("own")


def data_behind_super_of_a_class():
    yield from _data_behind_super("of_class")


def data_behind_super_with_arguments():
    yield from _data_behind_super("of_none")


def data_descriptor_that_gives_nothing():
    class Descriptor:
        def __get__(self, instance, owner):
            return 9

        def __set__(self, instance, value):
            pass

    class Holder:
        def __init__(self):
            self.__dict__["k"] = 2

    Holder.k = Descriptor()
    holder = Holder()

    def f(x):
        return x * holder.k

    yield f, ones()
    del Descriptor.__get__
    yield f, ones()
    holder.__dict__["k"] = 3
    yield f, ones()
    Descriptor.__rmul__ = lambda self, x: x - 5
    del holder.__dict__["k"]
    yield f, ones()
    Descriptor.__get__ = lambda self, instance, owner: 4
    holder.__dict__["k"] = 3
    yield f, ones()


@collect(globals())
def test_data_found_in_classes(program):
    check(program, breaks=True)
