"""Text: str, bytes, formats, `re`, `json`, `string`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
import struct
import textwrap
import uuid


def string_methods(x):
    text = " A,b ".strip().lower().replace("a", "xx")
    return x * len(text.split(",")) + text.find("b") + text.startswith("x") + len(text.center(9)) + text.count("x")


def string_more(x):
    head, _, tail = "key=value".partition("=")
    table = str.maketrans("abc", "xyz")
    return x * len(head) + len(tail.title()) + "aXb".swapcase().index("x") + ("a" * 3).translate(table).count("x")


def f_string(x):
    name = f"{x.shape[0]:>4}|{'a'!r}|{3.14159:.2f}|{1000:,}|{255:#x}"
    return x * len(name)


def format_method(x):
    return x * len("{0:>{1}} {key[a]} {obj.real}".format(3, 5, key={"a": 1}, obj=7))


def percent_format(x):
    return x * len("%05d %s %r" % (3, "a", 1.5)) + len("%(a)s" % {"a": 1})


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __format__(self, spec):
        return f"${self.amount:{spec}}"

    def __str__(self):
        return "money"

    def __repr__(self):
        return f"Money({self.amount})"


def user_format(x):
    money = Money(2.5)
    return x * len(f"{money:.3f}{money!s}{money!r}" + str(money) + repr([money]) + format(money, ".1f"))


def join_and_generator(x):
    return x * len(",".join(str(n) for n in range(12)))


def string_template(x):
    return x * len(string.Template("$a and $b").substitute(a="xx", b="yyy"))


def string_constants(x):
    return x * len(string.ascii_letters)


def encode_decode(x):
    return x * len("äö".encode()) + len(b"abc".decode("ascii")) + b"ab".hex().count("6")


def repr_of_tensor_metadata(x):
    return x * len(str(x.dtype) + repr(x.shape) + str(x.device))


def regular_expression(x):
    match = re.match(r"(\w+)\.(?P<index>\d+)", "layer.12")
    return x * int(match.group("index")) + len(re.sub("a", "bb", "aXa")) + len(re.findall(r"\d", "a1b2"))


PATTERN = re.compile(r"layer(\d+)")


def compiled_pattern(x):
    return x * int(PATTERN.search("model.layer3.weight").group(1)) + len(PATTERN.split("alayer1b"))


def json_dumps(x):
    return x * len(json.dumps({"a": [1, 2.5, None], "b": True}, sort_keys=True))


def json_loads(x):
    return x * json.loads('{"scale": 3}')["scale"]


def text_wrap(x):
    return x * len(textwrap.dedent("  a\n  b")) + len(textwrap.wrap("a b c", 3))


def hash_digest(x):
    return x * len(hashlib.md5(b"abc").hexdigest())


def struct_pack(x):
    return x * struct.unpack("<i", struct.pack("<i", 7))[0] + struct.calcsize("d")


def base64_encode(x):
    return x * len(base64.b64encode(b"abcd"))


def uuid_from_text(x):
    return x * len(uuid.UUID(int=5).hex)


def int_and_float_parsing(x):
    return x * int("0b11", 0) + float("1e-2") + (0.5).is_integer() + (255).bit_length() + len(float(2).hex())


def string_comparison(x):
    return x * 2 if "a" < "b" <= "b" and "x" in "xyz" and "abc"[1:] == "bc" else x


def isinstance_and_type_name(x):
    return x * len(type(x).__name__ + type(x).__module__ + x.__class__.__qualname__)
