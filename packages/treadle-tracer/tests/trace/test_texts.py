"""Questions about texts of numbers and tensors that only the call itself knows: eager's answers."""

from __future__ import annotations

import re

import pytest
import torch
from compile_runs import compiled

QUESTIONS = """
s == '2.00' | s != '2.00' | s == 'x' | s in {'2.00'} | s in ['2.00', 'a'] | (s, 1) == ('2.00', 1) | [s] == ['2.00']
{'a': s} == {'a': '2.00'}
s < 'b' | sorted([s, 'a']) | max(s, 'a') | [s, s].count(s) | [s].index(s) | '2' in s | len(s) | s.upper() | s * 2 | s + 1 | 1 + s | s % 3
'a' + s | {s: 1} | {'2.00': 3}[s] | hash(s) == hash('2.00') | bool(s) | s or 4 | not s | s is s | s[1] | list(s) | float(s) | s.encode()
'x'.join([s, 1]) | 'x'.join([s, s]) | 'x'.join(iter([s, 'q'])) | s.format() | '%s' % s | '%d' % s | '%(a)s' % {'a': s}
'{a[0]}'.format(a=[s])
'%d' % x | '%d' % x.sum() | '{:d}'.format(x.sum().item()) | f'{x.sum().item():d}' | '%s %s' % (s,) | '{} {}'.format(s) | f'{x}' == 'a'
str(x) < 'a' | '%5.1f' % x.sum() | f'{x.sum():>{n}}' | f'{s:>10}' | f'{s!r}' | f'{n}' == '3' | {f'{n}': 1} | f'{n}' in ['3'] | f'{n}' < '4'
len(f'{n}') | f'{n}' * 2 | int(f'{n}') + 1 | sorted([f'{n}', '1']) | '3' in f'{n}' | f'{n}'.zfill(4) | hash(f'{n}') == hash('3')
"""


@pytest.mark.parametrize("question", [part.strip() for part in QUESTIONS.strip().replace("\n", " | ").split(" | ")])
def test_answers_of_eager(question):
    source = f"""
def f(x, n):
    s = f'{{x.sum().item():.2f}}'
    try:
        answer = {question}
    except Exception as error:
        answer = type(error).__name__, str(error)
    return x + 1, answer
"""
    space: dict[str, object] = {}
    exec(source, space)
    fast, _ = compiled(space["f"])
    for n in (3, 4, 5, 3, 6):
        x = torch.ones(2) * (n - 2)
        assert repr(fast(x, n)) == repr(space["f"](x, n))


# ---- texts of tensors that require gradients, which name what the tensor was made by


def _check(condition, message):
    if not condition:
        raise ValueError(message)


def _checked(x, least):
    y = x * 2
    _check((y * y >= least).all(), f"too small: {y}")
    _check((y * y >= least).all(), "too small: " + str(y) + " and %s" % y)  # noqa: UP031
    return y.sin()


def _outcome(function, *args):
    try:
        return function(*args).detach()
    except ValueError as error:
        return str(error)


def test_the_message_of_a_check_that_holds_is_not_made():
    fast, said = compiled(_checked)
    for least in (0.0, 1e-9):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        assert torch.equal(_outcome(fast, x, least), _outcome(_checked, x, least))
    assert not said.breaks


def test_the_message_of_a_check_that_fails_is_eagers():
    fast, _ = compiled(_checked)
    for least in (0.0, 100.0, 0.0, 100.0):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        assert str(_outcome(fast, x, least)) == str(_outcome(_checked, x, least))


def _returned(x):
    y = x * 2
    text = f"made: {y}"
    return y.sin(), text


def _in_a_loop(x):
    texts = []
    for i in range(3):
        x = x * 2
        texts.append(f"{i}: {x}")
    return x.sin(), texts


def _caught(x):
    y = x * 2
    try:
        raise ValueError(f"bad: {y}")
    except ValueError as error:
        text = str(error)
    return y.sin(), text


def _measured(x):
    text = str(x * 2)
    return x + 1, len(text) > 10


def _made_by_a_call(x):
    y, first = _returned(x)
    z, second = _returned(y)
    return y + z, first, second


@pytest.mark.parametrize("function", [_returned, _in_a_loop, _caught, _measured, _made_by_a_call])
def test_a_text_that_is_read_is_made_by_python(function):
    fast, said = compiled(function)
    for _ in range(3):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        found, expected = fast(x), function(x)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
        assert len(found) == len(expected)
        for text, wanted in zip(found[1:], expected[1:], strict=True):
            assert _without_names(text) == _without_names(wanted)
    assert said.breaks


def _without_names(text):
    """The text without the names of nodes of autograd: a graph is one of them."""
    return re.sub(r"grad_fn=<\w+>", "", str(text))


def test_what_is_printed_at_a_break(capsys):
    def program(x):
        y = x * 2
        text = f"made: {y.sum().item():.1f} {y}"
        z = y.sin()
        print(text)
        return z.cos()

    fast, said = compiled(program)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    printed = []
    for run in (fast, program):
        run(x)
        printed.append(_without_names(capsys.readouterr().out))
    assert printed[0] == printed[1] and not said.skips
