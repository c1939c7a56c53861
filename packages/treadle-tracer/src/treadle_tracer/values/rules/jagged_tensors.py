"""Rules of jagged tensors (`torch.nested`): what PyTorch's own code for them calls, and the functions that make them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch.backends.cuda import math_sdp_enabled

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import jagged_attention, jagged_padding
from treadle_tracer.values.base import NONE, Constant, LazyValue, boolean, is_none
from treadle_tracer.values.function_overrides import without_overrides
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.jagged_tensors import JaggedTensor, new_jagged
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule, always
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_subclasses import call_plain
from treadle_tracer.values.unbacked import is_unbacked

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_OF_TENSORS = "torch.nested._internal.nested_tensor"
_OF_OPERATORS = "torch.nested._internal.ops"
aten = torch.ops.aten


def _named(names: str, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return dict(zip(names.split(), args, strict=False)) | kwargs


# ---- making them


def _construct(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`NestedTensor(values, offsets, lengths=, _ragged_idx=, _metadata_cache=, requires_grad=)`"""
    given = _named("values offsets", args, kwargs)
    asks = given.get("requires_grad")
    if asks is not None and asks.truth(tx):
        raise Unsupported("new-parameter", "a jagged tensor that requires gradients")
    lengths = given.get("lengths", NONE)
    return new_jagged(
        tx, given["values"], given["offsets"], lengths, given.get("_ragged_idx"), given.get("_metadata_cache")
    )


def _view(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch._nested_view_from_jagged(values, offsets, dummy, lengths, ragged_idx, min_seqlen, max_seqlen)`"""
    given = _named("values offsets dummy lengths ragged_idx min_seqlen max_seqlen", args, kwargs)
    cache = DictValue({})
    for name in ("min_seqlen", "max_seqlen"):
        if not is_none(given.get(name, NONE)):
            cache.set_item(tx, Constant(name), given[name])
    values = given["values"].force(tx) if isinstance(given["values"], LazyValue) else given["values"]
    if isinstance(values, TensorValue) and values.fake.requires_grad and not torch.is_grad_enabled():
        raise Unsupported("tensor-subclass", "a jagged view in no_grad of values that require gradients")
    return new_jagged(tx, values, given["offsets"], given.get("lengths", NONE), given.get("ragged_idx"), cache)


def _from_padded(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch._nested_from_padded_tensor(padded, offsets, dummy, ragged_idx, min_seqlen, max_seqlen, sum_S)`"""
    from torch.nested._internal.ops import _nested_from_padded_tensor_default

    operator = tx.wrap_known(aten._nested_from_padded_tensor.default)
    return tx.inline(tx.wrap_known(_nested_from_padded_tensor_default), [operator, *args], kwargs)


# ---- what their code calls


def _override(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`NestedTensor.__torch_function__(func, types, args, kwargs)`"""
    given = _named("cls func types args kwargs", args, kwargs)
    function = given["func"]
    named = given.get("kwargs", NONE)
    mapping = None if is_none(named) else named.as_dict(tx)
    values = {} if mapping is None else {key.constant(): value for key, value in mapping.items(tx)}
    name = function.get_attr(tx, "__name__")
    items = given["args"].unpack(tx)
    if name.is_constant() and name.constant() in _treated_apart():
        from torch.nested._internal.ops import jagged_torch_function

        return tx.inline(tx.wrap_known(jagged_torch_function), [function, *items], values)
    with without_overrides(tx):
        return call_plain(tx, function, items, values)


@functools.cache
def _treated_apart() -> frozenset[str]:
    """Names of the functions for which jagged tensors have code before PyTorch takes them apart: that code compares names with strings."""
    from torch.nested._internal.ops import jagged_torch_function

    strings = (constant for constant in jagged_torch_function.__code__.co_consts if isinstance(constant, str))
    return frozenset(("scaled_dot_product_attention", *strings))


def _check(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`check_schema("self: jt_all, dim: any?", func, *args)`: the kinds of arguments. Raises Unsupported where it raises."""
    schema, function, *given = args
    kinds = [part.split(": ")[1] for part in schema.constant().split(", ") if part != "..."]
    is_open = schema.constant().endswith("...")
    fewest = sum(not kind.endswith("?") for kind in kinds)
    if len(given) < fewest or (not is_open and len(given) > len(kinds)):
        raise Unsupported("torch-call-raises", f"{function.describe()} of {len(given)} arguments")
    for kind, value in zip(kinds, given, strict=False):
        value = value.force(tx) if isinstance(value, LazyValue) else value
        if not ((kind.endswith("?") and is_none(value)) or _is_of_kind(kind.rstrip("?"), value)):
            raise Unsupported("torch-call-raises", f"{function.describe()} of {value.describe()}")
    return NONE


def _is_of_kind(kind: str, value: Value) -> bool:
    if kind == "any":
        return True
    if kind == "t":
        return issubclass(value.python_type(), torch.Tensor) and not isinstance(value, JaggedTensor)
    if not isinstance(value, JaggedTensor):
        return False
    return kind == "jt_all" or (is_none(value.lengths) and value.ragged_dim == 1)


def _normalised(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.fx.operator_schemas.normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=True)`"""
    given = _named("target args kwargs", args, kwargs)
    only = given.get("normalize_to_only_use_kwargs")
    if only is None or not only.truth(tx):
        raise Unsupported("call", "normalize_function that leaves arguments without names")
    names, defaults = _parameters(given["target"])
    mapping = given["kwargs"].as_dict(tx)
    assert mapping is not None
    found = defaults | dict(zip(names, given["args"].unpack(tx), strict=False))
    found |= {key.constant(): value for key, value in mapping.items(tx)}
    made = DictValue({})
    for name in names:
        if name in found:
            made.set_item(tx, Constant(name), found[name])
    return TupleValue([TupleValue([]), made])


def _parameters(target: Value) -> tuple[list[str], dict[str, Value]]:
    """The names of a function's parameters, and the values of those that have defaults."""
    if isinstance(target, FunctionValue):
        count = target.code.co_argcount
        names = list(target.code.co_varnames[:count])
        return names, dict(zip(names[count - len(target.defaults) :], target.defaults, strict=True))
    schema = target.constant()._schema
    names = ["input" if one.name == "self" else one.name for one in schema.arguments]
    pairs = zip(names, schema.arguments, strict=True)
    return names, {name: Constant(one.default_value) for name, one in pairs if one.has_default_value()}


def _padded(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`aten._jagged_to_padded_dense_forward(values, [offsets], [longest], padding)`"""
    given = _named("values offsets max_lengths padding_value", args, kwargs)
    values, padding = given["values"], given.get("padding_value", Constant(0.0)).constant()
    offsets, longest = given["offsets"].unpack(tx), given["max_lengths"].unpack(tx)
    is_plain = isinstance(values, TensorValue) and values.fake.dim() == 2 and not values.fake.dtype.is_complex
    if not is_plain or len(offsets) != 1 or len(longest) != 1:  # no call of PyTorch's own code
        return tx.run_in_graph("call_function", aten._jagged_to_padded_dense_forward, args, kwargs)
    assert isinstance(values, TensorValue)
    fill = Constant(jagged_padding.fill_of(padding, values.fake.dtype))
    plain = [values, *offsets, *longest, fill, _is_found(tx, values, longest[0])]
    return tx.inline(tx.wrap_known(jagged_padding.padded), plain, {})


def _without_padding(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`aten._padded_dense_to_jagged_forward(rows, [offsets], total)`"""
    given = _named("dense offsets total_L", args, kwargs)
    rows, offsets, total = given["dense"], given["offsets"].unpack(tx), given.get("total_L", NONE)
    is_plain = isinstance(rows, TensorValue) and rows.fake.dim() == 3 and not rows.fake.dtype.is_complex
    if not is_plain or len(offsets) != 1 or is_none(total):
        return tx.run_in_graph("call_function", aten._padded_dense_to_jagged_forward, args, kwargs)
    plain = [rows, *offsets, total, _is_found(tx, rows, total)]
    return tx.inline(tx.wrap_known(jagged_padding.without_padding), plain, {})


def _is_found(tx: TraceContext, tensor: Value, size: Value) -> Value:
    """Whether the size, or one of the tensor, is a number that only the data tell."""
    sizes = [size, *(tx.tensor_method(tensor, "size", [], {}).unpack(tx))]
    return boolean(any(is_unbacked(tx, number) for number in sizes))


def _viewed(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`view_default(aten.view.default, tensor, size)`. PyTorch's code switches inference mode, which a graph does in pieces."""
    given = _named("func input size", args, kwargs)
    function, tensor, size = given["func"].constant(), given["input"], given["size"].unpack(tx)
    assert isinstance(tensor, JaggedTensor)
    sizes, dim = tensor.get_attr(tx, "_size").unpack(tx), tensor.ragged_dim
    kept = size[: dim + 1] if dim == 1 else size  # other tensors have no views but themselves
    if len(size) < 3 or len(kept) > len(sizes) or (dim > 1 and len(size) != len(sizes)):
        raise Unsupported("torch-call-raises", f"{function} of {tensor.describe()}")
    for wanted, own in zip(kept, sizes, strict=False):
        is_free = dim == 1 and tx.compare("==", wanted, Constant(-1)).truth(tx)
        if not is_free and not tx.compare("==", wanted, own).truth(tx):
            raise Unsupported("torch-call-raises", f"{function} of {tensor.describe()}")
    inner = [*size[1:]]
    inner[dim - 1] = tx.tensor_method(tensor.values, "size", [Constant(dim - 1)], {})
    found = tx.run_in_graph("call_function", function, [tensor.values, ListValue(inner)], {})
    return JaggedTensor(tx, (found, tensor.offsets, tensor.lengths, tensor.cache), dim)  # type: ignore[arg-type]


def _copied(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`to_copy_default(aten._to_copy.default, tensor, dtype=, device=, ...)`. Lengths on another device are other tensors."""
    function, tensor, *_ = args
    assert isinstance(tensor, JaggedTensor)
    options = {name: value for name, value in kwargs.items() if name not in ("layout", "self")}
    found = tx.run_in_graph("call_function", function.constant(), [tensor.values], options)
    assert isinstance(found, TensorValue)
    if found.fake.device != tensor.values.fake.device:
        raise Unsupported("tensor-subclass", f"{tensor.describe()} on another device")
    return JaggedTensor(tx, (found, tensor.offsets, tensor.lengths, tensor.cache), tensor.ragged_dim)


def _broadcast(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`broadcast_tensors(aten.broadcast_tensors.default, tensors)`: jagged tensors of one shape, and others of fewer dimensions."""
    tensors = [v.force(tx) if isinstance(v, LazyValue) else v for v in args[1].unpack(tx)]
    first = next(tensor for tensor in tensors if isinstance(tensor, JaggedTensor))
    inner = tx.tensor_method(first.values, "size", [], {})
    found: list[Value] = []
    for tensor in tensors:
        if isinstance(tensor, JaggedTensor):
            if not _is_of_shape(tensor, first):
                raise Unsupported("torch-call-raises", f"{tensor.describe()} broadcast to another shape")
            found.append(tensor)
        elif isinstance(tensor, TensorValue) and tensor.fake.dim() <= first.values.fake.dim():
            values = tx.tensor_method(tensor, "broadcast_to", [inner], {})
            found.append(new_jagged(tx, values, first.offsets, first.lengths, Constant(first.ragged_dim), first.cache))
        else:
            raise Unsupported("torch-call-raises", f"{tensor.describe()} broadcast to a jagged tensor")
    return TupleValue(found)


def _is_of_shape(one: JaggedTensor, other: JaggedTensor) -> bool:
    alike = one.length is other.length and one.ragged_dim == other.ragged_dim
    return alike and one.values.fake.shape == other.values.fake.shape


# ---- attention

_PARAMETERS = "query key value attn_mask dropout_p is_causal scale enable_gqa"


def _attention(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`jagged_scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)`"""
    given = _named(_PARAMETERS, args, kwargs)
    tensors = [v.force(tx) if isinstance(v, LazyValue) else v for v in (given["query"], given["key"], given["value"])]
    why_not = why_not_attention(tensors, given)
    if why_not is not None:
        raise Unsupported("tensor-subclass", f"attention of jagged tensors {why_not}")
    query, key, value = (t for t in tensors if isinstance(t, JaggedTensor))
    longest = TupleValue([tensor.get_attr(tx, "_maybe_max_seqlen") for tensor in (query, key)])
    offsets = TupleValue([query.offsets, key.offsets])
    values = [query.values, key.values, value.values]
    found = tx.inline(
        tx.wrap_known(jagged_attention.attention), [*values, offsets, longest, given.get("scale", NONE)], {}
    )
    return JaggedTensor(tx, (found, query.offsets, NONE, query.cache), 2)  # type: ignore[arg-type]


def why_not_attention(tensors: list[Value], given: Kwargs) -> str | None:
    """Why attention cannot be traced as the one that PyTorch computes on CPUs, or None.

    What PyTorch does not compute either is left to it, to raise.
    """
    if not all(isinstance(tensor, JaggedTensor) for tensor in tensors):
        return "beside others"
    query, key, value = (tensor for tensor in tensors if isinstance(tensor, JaggedTensor))
    fakes = [tensor.values.fake for tensor in (query, key, value)]
    if any(fake.device.type != "cpu" for fake in fakes) or torch.is_autocast_enabled("cpu") or not math_sdp_enabled():
        return "on this device, or in this state of PyTorch"
    if any(fake.dim() != 3 or tensor.ragged_dim != 2 for fake, tensor in zip(fakes, (query, key, value), strict=True)):
        return "of other dimensions than (batch, heads, ragged, head_dim)"
    if not all(is_none(tensor.lengths) for tensor in (query, key, value)) or key.offsets is not value.offsets:
        return "with holes, or with values that have other offsets than keys"
    if len({fake.dtype for fake in fakes}) > 1 or any(not fake.transpose(0, 1).is_contiguous() for fake in fakes):
        return "of several dtypes or layouts"
    plain = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
    for name, default in plain.items():
        found = given.get(name)
        if found is not None and not (found.is_constant() and found.constant() == default):
            return f"with {name}"
    return None


RULES = (
    Rule(f"{_OF_TENSORS}.NestedTensor", _construct, Effect.GRAPH),
    Rule(f"{_OF_TENSORS}.NestedTensor.__torch_function__", _override, Effect.GRAPH),
    always(f"{_OF_TENSORS}._nt_view_dummy", NONE),
    Rule(torch._nested_view_from_jagged, _view, Effect.GRAPH),  # type: ignore[attr-defined]
    Rule(torch._nested_from_padded_tensor, _from_padded, Effect.GRAPH),  # type: ignore[attr-defined]
    Rule(f"{_OF_OPERATORS}.check_schema", _check, Effect.NONE),
    Rule(f"{_OF_OPERATORS}.view_default", _viewed, Effect.GRAPH),
    Rule(f"{_OF_OPERATORS}.to_copy_default", _copied, Effect.GRAPH),
    Rule(f"{_OF_OPERATORS}.broadcast_tensors", _broadcast, Effect.GRAPH),
    Rule("torch.fx.operator_schemas.normalize_function", _normalised, Effect.NONE),
    Rule(aten._jagged_to_padded_dense_forward, _padded, Effect.GRAPH),
    Rule(aten._padded_dense_to_jagged_forward, _without_padding, Effect.GRAPH),
    Rule("torch.nested._internal.sdpa.jagged_scaled_dot_product_attention", _attention, Effect.GRAPH),
)
