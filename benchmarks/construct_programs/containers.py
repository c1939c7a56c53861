"""Containers: of builtins, of `collections`, of objects."""

from __future__ import annotations

import array
import bisect
import collections
import copy
import heapq

import torch


def deque_methods(x):
    queue = collections.deque([1, 2, 3], maxlen=4)
    queue.append(4)
    queue.appendleft(0)
    queue.rotate(1)
    queue.extend([7, 8])
    return x * queue.pop() + queue.popleft() + len(queue) + queue.maxlen + queue[0] + (7 in queue)


def deque_returned(x):
    return collections.deque([x, x + 1], maxlen=3)


def ordered_dict(x):
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    key, value = ordered.popitem(last=False)
    return x * value + len(ordered) + (list(reversed(ordered)) == ["a"])


def ordered_dict_returned(x):
    return collections.OrderedDict([("a", x), ("b", x + 1)])


def defaultdict_factory(x):
    groups = collections.defaultdict(list)
    groups["a"].append(x)
    groups["b"].append(x + 1)
    return torch.stack([items[0] for items in groups.values()])


def defaultdict_returned(x):
    found = collections.defaultdict(int)
    found["a"] += 2
    return found, x * found["a"]


def counter(x):
    counted = collections.Counter("aabbb")
    counted.update("ac")
    return x * counted.most_common(1)[0][1] + counted["missing"] + counted.total()


def counter_arithmetic(x):
    both = collections.Counter(a=3, b=1) - collections.Counter(a=1) + collections.Counter(b=2)
    return x * both["a"] + sum((both & collections.Counter(b=1)).elements() == ["b"] for _ in range(2))


def chain_map(x):
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    child = chain.new_child({"c": 4})
    return x * chain["a"] + child["b"] + len(child) + len(chain.parents)


def user_dict(x):
    class Upper(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(key.upper(), value)

    given = Upper(a=2)
    given["b"] = 3
    return x * given["A"] + len(given)


def user_list(x):
    values = collections.UserList([1, 2])
    values.append(3)
    return x * sum(values) + len(values)


def set_operations(x):
    left, right = {1, 2, 3}, frozenset([2, 3, 4])
    left.add(5)
    left.discard(1)
    return x * len(left | right) + len(left & right) + len(left ^ right) + sum(left - right) + ({2} <= right)


class Key:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        return self.number == other.number


def set_of_objects(x):
    keys = {Key(1), Key(1), Key(2)}
    keys.add(Key(3))
    return x * len(keys) + (Key(2) in keys)


def set_of_tensors(x):
    y = x + 1
    seen = {x, y}
    seen.add(x)
    return x * len(seen)


def dict_keyed_by_tensor(x):
    return {x: x + 1}[x]


def set_of_modules(x):
    layers = [torch.nn.Identity(), torch.nn.ReLU()]
    return x * len(set(layers))


def set_returned(x):
    return {1, 2, x.shape[0]}, x + 1


def frozenset_as_key(x):
    return x * {frozenset([1, 2]): 3}[frozenset([2, 1])]


def dict_methods(x):
    given = {"a": 1, "b": 2}
    given.setdefault("c", 3)
    given.update(d=4)
    given |= {"e": 5}
    given.pop("a")
    return x * sum(given.values()) + len(given.keys() & {"b"}) + given.get("zz", 7) + len(dict.fromkeys("ab"))


def dict_views(x):
    given = {"a": x, "b": x + 1}
    return sum(given.values()) * len(given.items()) + (("a") in given.keys())


def list_methods(x):
    values = [3, 1, 2]
    values.sort(key=lambda n: -n)
    values.insert(1, 9)
    values.extend(range(2))
    values.remove(9)
    values.reverse()
    values[1:2] = [7, 7]
    return x * values.index(7) + values.count(7) + values.pop() + len(values.copy())


def list_comparison(x):
    return x * 2 if [1, 2] < [1, 3] and (1, 2) == (1, 2) and [1] != [2] else x


def nested_containers(x):
    tree = {"a": [x, {"b": (x + 1, 2)}]}
    return tree["a"][1]["b"][0] * tree["a"][1]["b"][1]


OUTER: list = []
METRICS: dict = {"calls": 0}


def append_to_outer_list(x):
    OUTER.append(x + 1)
    OUTER.append(2)
    return x * len(OUTER)


def metrics_counter(x):
    METRICS["calls"] += 1
    METRICS.setdefault("first", x.shape[0])
    return x * METRICS["calls"]


def bytes_and_bytearray(x):
    data = bytearray(b"abc")
    data.append(100)
    data[0] = 65
    return x * len(data) + data[0] + bytes([1, 2])[1] + len(b"a,b".split(b","))


def memory_view(x):
    return x * memoryview(b"abc")[1] + len(memoryview(bytearray(4)))


def array_module(x):
    values = array.array("i", [1, 2, 3])
    values.append(4)
    return x * sum(values)


def heap_queue(x):
    heap = [5, 1, 3]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    return x * heapq.heappop(heap) + heapq.nlargest(1, heap)[0] + len(heap)


def bisect_functions(x):
    values = [1, 3, 5]
    bisect.insort(values, 4)
    return x * bisect.bisect_left(values, 4) + len(values)


def copy_copy(x):
    given = {"a": [1, 2], "t": x}
    shallow, deep = copy.copy(given), copy.deepcopy(given["a"])
    deep.append(3)
    return shallow["t"] * len(deep) + len(given["a"])


def deepcopy_tensor(x):
    other = copy.deepcopy({"a": x})
    other["a"].add_(1)
    return other["a"], x


def tuple_concatenation(x):
    return x * sum((1, 2) + (3,) * 2) + len(x.shape + (1,))


def torch_size(x):
    size = torch.Size([2, 3])
    return x.reshape(size) + size.numel() + len(size + (1,)) + (x.shape == size)


def hash_and_id(x):
    return x * 2 if hash((1, "a")) == hash((1, "a")) and id(x) == id(x) else x
