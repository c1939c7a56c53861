"""Lists, dicts and sets that the program changes without looking at them: what it does is done again, in its order."""

from __future__ import annotations

import random

import pytest
import torch
from compile_runs import compiled, portrait

LIST = [
    "box.append(n)",
    "box.append(x * n)",
    "box.extend([n, n + 1])",
    "box += [n]",
    "out.append(len(box))",
    "out.append(bool(box))",
    "out.append(list(box))",
    "box.insert(0, n)",
    "box.pop()",
    "out.append(box[-1])",
    "box[0] = n",
    "out.append(n in box)",
    "box.clear()",
    "box.reverse()",
    "out.append(box == [n])",
    "other.append(box)",
    "box = box + [n]",
]
DICT = [
    "box[n] = x",
    "box['k'] = n",
    "box[len(box)] = n",
    "out.append(len(box))",
    "out.append(bool(box))",
    "out.append(list(box))",
    "out.append(list(box.items()))",
    "out.append('k' in box)",
    "out.append(box.get('k'))",
    "out.append(box.get(n, 5))",
    "box.pop('k', None)",
    "box.setdefault(n, 7)",
    "box.update({'z': n, 'k': 0})",
    "box.clear()",
    "del box['a']",
    "box |= {'q': 1}",
    "other.append(dict(box))",
]
SET = [
    "box.add(n)",
    "box.add('item %d' % n)",
    "box.discard('a')",
    "box.update(['p', 'q', n])",
    "box |= {'r', 's', 't'}",
    "box -= {'p', 'b'}",
    "box &= {'a', 'b', 'p', 1, 2, 'item 3'}",
    "box ^= {'a', 'u'}",
    "box.clear()",
    "box.intersection_update(['a', 'b', n])",
    "out.append(len(box))",
    "out.append(bool(box))",
    "out.append('a' in box)",
    "out.append(list(box))",
    "box.remove('a')",
    "other.append(set(box))",
]
STARTS = {
    "list": (LIST, lambda: random.choice([[], [1], ["a", 2, 3]])),
    "dict": (DICT, lambda: random.choice([{}, {"a": 1}, {"k": 0, "a": 2, 3: 4}])),
    "set": (SET, lambda: set(random.choice([[], ["a"], ["a", "b", "c", 1, "item 2"]]))),
}


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", STARTS)
def test_random_changes(kind, seed):
    random.seed(f"{kind} {seed}")
    lines, start = STARTS[kind]
    chosen = random.choices(lines, k=random.randint(1, 5))
    body = "".join(f"    n = {random.randint(0, 4)}\n    {line}\n" for line in chosen)
    space: dict[str, object] = {}
    exec(f"def f(box, other, x):\n    out = []\n{body}    return x + 1, out", space)
    function = space["f"]
    fast, _ = compiled(function)
    boxes = [start() for _ in range(3)]
    for box in (*boxes, boxes[0]):
        looks = []
        copies = [_same_history(box), _same_history(box)]
        for run, own in zip((function, fast), copies, strict=True):
            others: list[object] = []
            try:
                result = run(own, others, torch.ones(2))
            except (KeyError, IndexError, ValueError, RuntimeError) as error:
                result = (type(error), str(error))
            looks.append(portrait(result, own, others, list(own)))
        assert looks[0] == looks[1], body


def _same_history(box):
    if isinstance(box, set):
        made = set()
        for item in box:
            made.add(item)
        return made
    return type(box)(box)
