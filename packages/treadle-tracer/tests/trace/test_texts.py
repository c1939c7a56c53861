"""Questions about texts of numbers and tensors that only the call itself knows: eager's answers."""

from __future__ import annotations

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
