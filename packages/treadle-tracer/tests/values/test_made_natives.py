"""Objects of types implemented in C that compiled functions make: streams, byte arrays, arrays, hashes, dates, decimals."""

from __future__ import annotations

import array
import contextlib
import copy
import datetime
import decimal
import fractions
import hashlib
import io
import struct
import zlib

import pytest
import torch
from compile_runs import compiled


def text_stream(x):
    stream = io.StringIO("ab\ncd\n")
    first = stream.read(1)
    print("e", 3, file=stream, sep="-", end="!")
    stream.seek(0)
    return x + 1, first, list(stream), stream.getvalue(), stream.closed, stream


def redirected(x):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        print("inside", x.shape[0])
    print("outside")
    return x * len(stream.getvalue())


def byte_stream(x):
    with io.BytesIO(b"abc") as stream:
        stream.seek(0, 2)
        stream.write(b"de")
        text = stream.getvalue()
    return x * len(text), stream.closed


def closed_stream(x):
    stream = io.StringIO()
    stream.close()
    try:
        stream.write("a")
    except ValueError as error:
        return x + 1, str(error)


def byte_array(x):
    data = bytearray(b"abc")
    same = data
    data.append(100)
    data[0] = 65
    data += b"z"
    other = data + b"q"
    data *= 2
    return x * len(data) + sum(data), data, same is data, other, bytes(other), data == other, b"A" in data, data[1:3]


def shared_byte_array(x):
    data = bytearray(2)
    holder = [data, data]
    holder[0][1] = 7
    return x + holder[1][1], holder, holder[0] is holder[1]


def refused(x):
    data = bytearray(3)
    try:
        data[7] = 1
    except IndexError as error:
        return x + 1, str(error), data


def grown_in_a_loop(x):
    data = bytearray()
    for number in range(3):
        data.append(number)
        for byte in data:
            if len(data) < 6:
                data.append(byte + 1)
    return x + len(data), data


def typed_array(x):
    values = array.array("i", [1, 2, 3])
    values.append(4)
    values.extend([5])
    return x * sum(values), values, values.typecode, values.tolist(), [value for value in values][::-1]


def hashes(x):
    one = hashlib.sha256(b"a")
    other = one.copy()
    one.update(b"b")
    return x + len(hashlib.md5(b"abc").hexdigest()), one, other.hexdigest(), one.digest_size


def packed(x):
    low, high = struct.unpack("<ih", struct.pack("<ih", 7, -2))
    return x * low + high + zlib.crc32(b"abc") % 7, len("aab".translate(str.maketrans("a", "b")))


def dates(x):
    day = datetime.date(2024, 1, 31) + datetime.timedelta(days=1)
    gone = datetime.datetime(2020, 1, 2) - datetime.datetime(2019, 1, 1)
    return (
        x * day.month + gone.days,
        (f"{day} {gone}", repr([day]), str(datetime.datetime(2020, 1, 1, 3)), str({"day": day})),
        day,
        gone,
        datetime.datetime(2020, 1, 1).isoformat(),
        day > datetime.date(2023, 1, 1),
    )


def exact_decimals(x):
    price = decimal.Decimal("1.5") * 2
    return x * int(price) + float(fractions.Fraction(1, 2)), price, decimal.Decimal(3) < price


WHOLE = (
    text_stream,
    redirected,
    byte_stream,
    closed_stream,
    byte_array,
    shared_byte_array,
    refused,
    grown_in_a_loop,
    typed_array,
    hashes,
    packed,
    dates,
    exact_decimals,
)


def text_of_the_graph(x):
    stream = io.StringIO()
    print(x.sum().item(), file=stream)
    return x + 1, stream.getvalue()


def rounded_decimal(x):
    return x + float(decimal.Decimal(1) / decimal.Decimal(3))


def no_decimal(x):
    try:
        return x + int(decimal.Decimal("x"))
    except decimal.InvalidOperation:
        return x - 1


def zoned(x):
    zone = datetime.timezone(datetime.timedelta(hours=1))
    return x + datetime.datetime(2020, 1, 1, tzinfo=zone).hour, datetime.datetime(2020, 1, 1, tzinfo=zone).isoformat()


def copied(x):
    data = bytearray(b"ab")
    other = copy.copy(data)
    other.append(1)
    return x + 1, data, other, copy.deepcopy([data, data])


def viewed(x):
    data = bytearray(b"ab")
    view = memoryview(data)
    view[0] = 1
    return x + data[0], data


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, io.StringIO):
        return "stream", value.getvalue(), value.tell()
    return value.hexdigest() if hasattr(value, "hexdigest") else repr(value)


@pytest.mark.parametrize(
    "program",
    (*WHOLE, text_of_the_graph, rounded_decimal, no_decimal, zoned, copied, viewed),
    ids=lambda program: program.__name__,
)
def test_programs(program, capsys):
    run, said = compiled(program)
    for start in (1.0, 2.0, 2.0):
        found = run(torch.full((2,), start)), capsys.readouterr()
        expected = program(torch.full((2,), start)), capsys.readouterr()
        assert _plain(found[0]) == _plain(expected[0]) and found[1] == expected[1]
        if isinstance(found[0], tuple):  # what one call has given is no other call's
            for value in found[0]:
                if isinstance(value, bytearray):
                    value.clear()
    if program in WHOLE:
        assert not said.breaks and not said.skips and len(said.graphs) == 1


def test_the_context_of_decimals():
    def program(x):
        return x + float(decimal.Decimal("1.2345") * 3)

    run, _ = compiled(program)
    for precision in (28, 3, 28, 2):
        with decimal.localcontext() as context:
            context.prec = precision
            context.clear_flags()
            found, flags = run(torch.zeros(1)), dict(context.flags)
            context.clear_flags()
            assert torch.equal(found, program(torch.zeros(1))) and flags == dict(context.flags)


def test_a_branch_that_is_only_tried():
    def program(x, mask):
        stream = io.StringIO()
        stream.write("a")
        if mask.any():
            stream.write("b")
            x = x + 1
        return x * len(stream.getvalue()), stream.getvalue()

    run, _ = compiled(program)
    for truth in (True, False, True):
        given = torch.ones(2), torch.tensor([truth, False])
        assert _plain(run(*given)) == _plain(program(*given))
