"""What exceptions made in the trace hold besides `args`, and what `__init__` of built-in classes refuses."""

from __future__ import annotations

import collections

import pytest
import torch
from compile_runs import compiled


def members(x):
    error, stop, leave = OSError(5, "m", "file"), StopIteration(3), SystemExit(4)
    import_error = ImportError("i", name="n", path="p")
    decode = UnicodeDecodeError("utf-8", b"ab", 0, 1, "why")
    return (
        x * error.errno,
        (error.errno, error.strerror, error.filename, error.args),
        (stop.value, leave.code, SystemExit().code, StopIteration().value),
        (import_error.name, import_error.path, import_error.msg, ImportError().name),
        (decode.encoding, decode.start, decode.reason),
        (AttributeError("a", name="n", obj=3).obj, AttributeError("a").name, NameError("a").name),
    )


def tensors_in_members(x):
    y = x + 1
    leave, error = SystemExit(y), OSError(3, y)
    return leave.code * 2, leave.code is y, error.strerror is y


def subclass_of_os_error(x):
    log = []
    for number in (2, 13, 4, 9999):
        try:
            raise OSError(number, "m")
        except (FileNotFoundError, PermissionError) as error:
            log.append((type(error), str(error)))
        except OSError as error:
            log.append(("other", type(error), error.errno))
    return x, log


def never_swallowed(x):
    try:
        number = OSError(3, "m").errno
    except AttributeError:
        number = 100
    return x * number, getattr(SystemExit(4), "code", "none")


def texts(x):
    errors = OSError(2, "m"), OSError("m"), KeyError("k"), ImportError("i"), UnicodeDecodeError("a", b"b", 0, 1, "c")
    return x * 2, [str(error) for error in errors], f"{SystemExit(3)}", str(ValueError(1, 2))


def representations(x):
    log = []
    for made in (
        ValueError("a", x.shape[0]),
        KeyError("k"),
        LookupError,
        Named(3),
        OSError(2, "m"),
        ValueError([KeyError(1)]),
    ):
        try:
            raise made
        except Exception as error:
            log += [repr(error), f"{error!r}", "%r %s" % (error, error), str([error])]  # noqa: UP031
    return x * 2, log


def refused_calls(x):
    log = []
    calls = (
        lambda: Pair(1, 2, 3),
        lambda: Pair(),
        lambda: Pair(1, z=1),
        lambda: Pair(1, first=1),
        lambda: Pair._make([1]),
        lambda: Pair(1),
        lambda: Pair(second=3, first=x.shape[0]),
        lambda: list(IteratesNothing()),
        lambda: iter(IteratesNothing()),
        lambda: collections.OrderedDict().popitem(),
        lambda: {}.popitem(),
    )
    for call in calls:
        try:
            log.append(call())
        except Exception as error:
            log.append((type(error), str(error)))
    return x * 2, log


def notes(x):
    error, log = ValueError("a"), []
    error.add_note("n")
    error.add_note("m")
    try:
        error.add_note(3)
    except TypeError as refused:
        log.append(str(refused))
    return x, error.__notes__, hasattr(KeyError(), "__notes__"), log


Pair = collections.namedtuple("Pair", "first second", defaults=[2])


class IteratesNothing:
    def __iter__(self):
        return 1


class Named(Exception):
    def __str__(self):
        return "named"


class Code(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Leave(SystemExit):
    def __init__(self, number):
        self.number = number


class NotFound(OSError):
    pass


def own_classes(x):
    try:
        raise Code(3, "t")
    except Code as error:
        found = error.code, error.args, str(error)
    leave = Leave(3)
    return x, found, (leave.code, leave.args, leave.number), NotFound(2, "m").errno, type(NotFound(2, "m"))


def refused_arguments(x):
    log = []
    for make in (lambda: UnicodeDecodeError(1), lambda: UnicodeDecodeError("a", b"b", "c", 1, "d")):
        try:
            make()
        except TypeError as error:
            log.append(str(error))
    return x, log


def without_traceback(x):
    error = ValueError(1)
    try:
        raise error
    except ValueError:
        pass
    before = error.__traceback__ is None
    return x, before, error.with_traceback(None) is error, error.__traceback__


def caught_by_name_of_no_class(x):
    try:
        try:
            raise ValueError
        except 3:
            x = x + 1
    except TypeError as error:
        return x, str(error)


def set_by_python(x):
    try:
        x.missing_attribute
    except AttributeError as error:
        return x, error.name, error.obj is x


def from_a_module(x):
    import json

    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return x, error.pos, error.msg, error.doc


def returned(x):
    stop = StopIteration(3)
    error = ImportError("i", name="n")
    return x, stop.value, error.name, OSError(2, "m", "f").filename


WHOLE = (
    members,
    tensors_in_members,
    subclass_of_os_error,
    never_swallowed,
    texts,
    representations,
    refused_calls,
    notes,
    own_classes,
    refused_arguments,
    without_traceback,
    caught_by_name_of_no_class,
    returned,
)


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("program", (*WHOLE, set_by_python, from_a_module), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.ones(2))) == _plain(program(torch.ones(2)))
    if program in WHOLE:
        assert not said.breaks
        assert not said.skips


def made_to_be_returned(x):
    named = ImportError("i", name="n", path="p")
    noted = ValueError(1, x)
    noted.add_note("n")
    return x + 1, StopIteration(3), SystemExit(x), named, OSError(2, "m", "f"), Leave(4), Code(3, "t"), noted


def test_returned_exceptions_are_whole():
    run, _ = compiled(made_to_be_returned)
    x = torch.ones(2)
    _, stop, leave, named, missing, own, code, noted = run(x)
    assert (stop.value, named.name, named.path, named.msg) == (3, "n", "p", "i")
    assert leave.code is x
    assert leave.args[0] is x
    assert (type(missing), missing.errno, missing.filename, str(missing)) == (
        FileNotFoundError,
        2,
        "f",
        "[Errno 2] m: 'f'",
    )
    assert (own.code, own.args, own.number) == (None, (4,), 4)
    assert (code.code, code.args) == (3, ("t",))
    assert noted.__notes__ == ["n"]
    assert noted.args[1] is x


class NoException:
    def __init__(self, needed):
        self.needed = needed


class MakesNumbers(Exception):
    def __new__(cls):
        return 3


class Needing(Exception):
    def __init__(self, needed):
        super().__init__(needed)


def raises(exception):
    raise exception


def raises_from(cause):
    raise ValueError("v") from cause


RAISED = {
    "class that is none": lambda: raises(NoException),
    "instance that is none": lambda: raises(NoException(1)),
    "number": lambda: raises(3),
    "class of another metaclass": lambda: raises(type),
    "class that makes a number": lambda: raises(MakesNumbers),
    "class that needs an argument": lambda: raises(Needing),
    "cause that is none": lambda: raises_from(NoException),
    "cause that is a number": lambda: raises_from(3),
    "cause that makes a number": lambda: raises_from(MakesNumbers),
    "cause of a class": lambda: raises_from(KeyError),
    "no cause": lambda: raises_from(None),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_may_be_raised(name):
    """Classes that are no exceptions are not called."""

    def program(x):
        try:
            RAISED[name]()
        except Exception as error:
            return x + 1, type(error).__name__, str(error), type(error.__cause__).__name__, error.__suppress_context__

    x = torch.ones(2)
    found, expected = compiled(program)[0](x), program(x)
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
