"""Output: print, logging, warnings, streams."""

from __future__ import annotations

import contextlib
import io
import logging
import pprint
import sys
import traceback
import warnings

LOG = logging.getLogger("construct")


def print_text(x):
    print("before", x.shape[0], sep="|", end=".\n")
    return x + 1


def print_tensor(x):
    y = x + 1
    print(y)
    return y * 2


def print_number_of_tensor(x):
    print("sum", x.sum().item())
    return x * 2


def print_formatted_tensor_number(x):
    print(f"loss {x.mean().item():.3f}")
    return x * 2


def print_to_stderr(x):
    print("error", file=sys.stderr, flush=True)
    return x + 1


def stdout_write(x):
    sys.stdout.write("written\n")
    sys.stdout.flush()
    return x + 1


def logging_info(x):
    LOG.warning("size %d", x.shape[0])
    LOG.info("not shown")
    logging.debug("neither")
    return x + 1


def logging_enabled(x):
    return x * 2 if LOG.isEnabledFor(logging.ERROR) else x


def warnings_warn(x):
    warnings.warn("be careful", UserWarning, stacklevel=2)
    return x + 1


def warnings_catch(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden", stacklevel=1)
    return x + 1


def warnings_recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("one", stacklevel=1)
    return x * len(seen)


def redirect_stdout(x):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        print("inside")
    return x * len(stream.getvalue())


def pretty_print(x):
    pprint.pprint({"a": [1, 2]})
    return x + 1


def traceback_format(x):
    try:
        raise ValueError("a")
    except ValueError:
        return x * (len(traceback.format_exc()) > 0)


def print_then_raise_inside(x):
    try:
        print("one")
        raise ValueError("two")
    except ValueError as error:
        print(error)
    return x + 1
