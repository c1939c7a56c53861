"""Exception groups and `except*`: what compiled functions make of them is what Python makes of them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from compile_runs import compiled, item


def shape(error):
    """An exception as something that can be compared."""
    if error is None:
        return None
    notes = getattr(error, "__notes__", None)
    chain = type(error.__cause__).__name__, type(error.__context__).__name__, error.__traceback__ is None
    if isinstance(error, BaseExceptionGroup):
        return (
            type(error).__name__,
            error.message,
            [shape(part) for part in error.exceptions],
            str(error),
            notes,
            chain,
        )
    return type(error).__name__, [str(arg) for arg in error.args], notes


def several():
    return ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2), ValueError(3)]), TypeError(4)])


def handled_in_parts(x):
    log = []
    try:
        raise several()
    except* ValueError as group:
        log.append(shape(group))
    except* (KeyError, TypeError) as group:
        log.append(shape(group))
    return x * 2, log


def left_over(x):
    log = []
    try:
        try:
            raise several()
        except* ValueError as group:
            log.append(shape(group))
    except ExceptionGroup as group:
        log.append(shape(group))
    return x * 2, log


def unmatched(x):
    group = several()
    try:
        try:
            raise group
        except* OSError:
            x = x + 1
    except ExceptionGroup as error:
        return x * 2, error is group, shape(error)


def bare(x):
    log = []
    try:
        try:
            raise ValueError(7)
        except* ValueError as group:
            log.append((type(group), group.message, group.exceptions[0].args, group.args[0]))
        try:
            raise KeyError(7)
        except* ValueError:
            log.append("never")
    except KeyError as error:
        log.append(shape(error))
    return x * 2, log


def bare_raised_again(x):
    try:
        try:
            raise ValueError(7)
        except* ValueError:
            raise
    except Exception as error:
        return x * 2, shape(error)


def bare_in_second_clause(x):
    log = []
    try:
        try:
            raise ValueError(7)
        except* KeyError:
            log.append("key")
        except* ValueError as group:
            log.append(group.exceptions)
            raise OSError(3) from None
    except Exception as error:
        return x * 2, shape(error), len(log)


def raised_again_in_part(x):
    try:
        try:
            raise several()
        except* ValueError:
            raise
        except* KeyError:
            pass
    except ExceptionGroup as error:
        return x * 2, shape(error)


def raised_anew(x):
    try:
        try:
            raise several()
        except* ValueError as group:
            raise group  # noqa: TRY201
        except* KeyError:
            raise OSError("o")  # noqa: B904
    except ExceptionGroup as error:
        return x * 2, shape(error), shape(error.exceptions[1].__context__)


def raise_again():
    raise  # noqa: PLE0704


def raised_again_by_a_call(x):
    try:
        try:
            raise several()
        except* ValueError:
            raise_again()
        except* TypeError:
            raise
    except ExceptionGroup as error:
        return x * 2, shape(error)


def with_a_cause(x):
    try:
        try:
            raise several()
        except* ValueError as group:
            raise RuntimeError("r") from group
    except ExceptionGroup as error:
        return x * 2, shape(error), shape(error.exceptions[0].__cause__)


def handled_exception(x):
    import sys

    log = []
    try:
        raise several()
    except* ValueError as group:
        log.append(sys.exc_info()[1] is group)
    except* Exception as group:
        log.append(sys.exception() is group)
    return x * 2, log, sys.exc_info()


def finally_behind(x):
    log = []
    try:
        try:
            raise several()
        except* ValueError:
            log.append("v")
        else:
            log.append("else")
        finally:
            log.append("finally")
    except* Exception as rest:
        log.append(shape(rest))
    return x * 2, log


def nothing_raised(x):
    log = []
    try:
        log.append("body")
    except* ValueError:
        log.append("v")
    else:
        log.append("else")
    return x * 2, log


def in_a_loop(x):
    for n in range(4):
        try:
            if n == 1:
                raise ExceptionGroup("g", [ValueError(n)])
            x = x + n
        except* ValueError as group:
            x = x * len(group.exceptions)
    return x


def nested(x):
    log = []
    try:
        try:
            raise several()
        except* ValueError:
            try:
                raise ExceptionGroup("i", [IndexError(), KeyError()])  # noqa: B904
            except* IndexError:
                log.append("index")
    except* KeyError as group:
        log.append(shape(group))
    except* TypeError as group:
        log.append(shape(group))
    return x * 2, log


def split_and_subgroup(x):
    group = several()
    group.add_note("n")
    matched, rest = group.split(ValueError)
    matched.__notes__.append("m")
    by_function = group.subgroup(lambda error: error.args == (2,))
    none = group.subgroup(OSError)
    whole = group.split(ExceptionGroup)
    parts = group.split((KeyError, TypeError))
    return (
        x * 2,
        [shape(part) for part in (matched, rest, by_function, none, *parts)],
        (whole[0] is group, whole[1]),
        group.__notes__,
        shape(group.derive([OSError(1)])),
    )


def wrong_conditions(x):
    log = []
    for condition in (3, "a", int, (int, ValueError)):
        try:
            several().split(condition)
        except TypeError as error:
            log.append(str(error))
    return x * 2, log


def wrong_groups(x):
    log = []
    for make in (
        lambda: ExceptionGroup("g", []),
        lambda: ExceptionGroup(3, [ValueError()]),
        lambda: ExceptionGroup("g", [3]),
        lambda: ExceptionGroup("g"),
        lambda: ExceptionGroup("g", [KeyboardInterrupt()]),
    ):
        try:
            make()
        except (TypeError, ValueError) as error:
            log.append((type(error), str(error)))
    return x * 2, log


def base_groups(x):
    found = [BaseExceptionGroup("g", [ValueError()]), BaseExceptionGroup("g", [KeyboardInterrupt()])]
    return x * 2, [type(group) for group in found], [isinstance(group, Exception) for group in found]


class Own(ExceptionGroup):
    def derive(self, exceptions):
        return Own(self.message + "'", exceptions)


class Plain(ExceptionGroup):
    pass


def own_classes(x):
    log = []
    for cls in (Own, Plain):
        try:
            try:
                raise cls("o", [ValueError(1), KeyError(2)])
            except* ValueError as group:
                log.append(shape(group))
        except ExceptionGroup as group:
            log.append(shape(group))
    return x * 2, log


def caught_groups(x):
    try:
        raise several()
    except* ExceptionGroup:
        x = x + 1
    return x


def caught_no_classes(x):
    log = []
    try:
        try:
            raise several()
        except* 3:
            log.append("three")
    except TypeError as error:
        log.append(str(error))
    return x * 2, log


def forbidden(x):
    log = []
    try:
        try:
            raise several()
        except* (ValueError, ExceptionGroup):
            log.append("group")
    except TypeError as error:
        log.append(str(error))
    return x * 2, log


def suppressed(x):
    log = []
    try:
        with contextlib.suppress(ValueError):
            raise several()
    except ExceptionGroup as group:
        log.append(len(group.exceptions))
    return x * 2, log


def of_tensors(x):
    try:
        raise ExceptionGroup("g", [ValueError(x * 2), KeyError(x + 1)])
    except* ValueError as group:
        y = group.exceptions[0].args[0]
    except* KeyError as group:
        y = y + group.exceptions[0].args[0]
    return y


def in_a_generator(x):
    def numbers():
        try:
            yield 1
        except* ValueError as group:
            yield len(group.exceptions)

    generator = numbers()
    first = next(generator)
    second = generator.throw(ExceptionGroup("g", [ValueError(), ValueError()]))
    return x * first * second, list(generator)


def changed_list(x):
    errors = [ValueError(1)]
    group = ExceptionGroup("g", errors)
    errors.append(KeyError(2))
    return x * len(group.exceptions), len(group.args[1])


WHOLE = (
    handled_in_parts,
    left_over,
    unmatched,
    bare,
    bare_raised_again,
    bare_in_second_clause,
    raised_again_in_part,
    raised_anew,
    raised_again_by_a_call,
    with_a_cause,
    handled_exception,
    finally_behind,
    nothing_raised,
    in_a_loop,
    nested,
    split_and_subgroup,
    wrong_conditions,
    wrong_groups,
    base_groups,
    own_classes,
    caught_no_classes,
    forbidden,
    suppressed,
    of_tensors,
    in_a_generator,
    changed_list,
)


def broken_in_the_handler(x):
    log = []
    try:
        try:
            raise several()
        except* ValueError as group:
            log.append((item(x.sum()), shape(group)))
            raise
    except ExceptionGroup as group:
        log.append(shape(group))
    return x * 2, log


def fails(x):
    item(x.sum())
    raise several()


def raised_behind_a_break(x):
    log = []
    try:
        try:
            fails(x)
        except* ValueError as group:
            log.append((item(x.sum()), shape(group)))
            raise
        except* TypeError:
            log.append(item(x.sum()))
            raise OSError  # noqa: B904
    except ExceptionGroup as group:
        log.append(shape(group))
    return x * 2, log


def fails_really(x):
    raise several()


fails_really._treadle_disabled = True


def raised_by_python(x):
    log = []
    y = x + 1
    try:
        try:
            fails_really(x)
        except* ValueError as group:
            y = y * len(group.exceptions)
            log.append(item(y.sum()))
            raise
        except* KeyError:
            y = y * 3
    except ExceptionGroup as group:
        log.append(shape(group))
    return y, log


def made_and_returned(x):
    group = several()
    group.add_note("n")
    return x * 2, group, group.split(KeyError)[1], OSError(2, "m", "file")


BROKEN = (broken_in_the_handler, raised_behind_a_break, raised_by_python)


def _plain(result):
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, (tuple, list)):
        return [_plain(part) for part in result]
    return shape(result) if isinstance(result, BaseException) else result


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_is_one_graph(program):
    run, said = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.arange(3.0))) == _plain(program(torch.arange(3.0)))
    assert not said.breaks
    assert not said.skips


@pytest.mark.parametrize("program", [*BROKEN, made_and_returned], ids=lambda program: program.__name__)
def test_broken_programs(program):
    run, _ = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.arange(3.0))) == _plain(program(torch.arange(3.0)))


def test_except_star_of_groups_is_refused():
    run, _ = compiled(caught_groups)
    with pytest.raises(TypeError, match=r"catching ExceptionGroup with except\* is not allowed"):
        run(torch.ones(2))
