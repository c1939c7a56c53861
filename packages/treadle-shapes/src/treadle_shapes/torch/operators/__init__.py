"""The operator table: one record of facts per ATen operator.

    operator(torch.ops.aten.squeeze.dim).kind          # Kind.VIEW
    operator("contiguous").may_return_argument         # True
    operator(torch.nn.functional.gelu).cost            # Cost.TRANSCENDENTAL

`record` documents the fields. Facts come from schemas, tags and dispatch keys (`derive`) and from the family modules. The docstring of a
family module says what cannot be derived. To add a fact, add it to the family's declaration; to add a field, add it to `Operator`.
"""

from treadle_shapes.torch.operators.bindings import binding_of, binding_of_call, named_binding
from treadle_shapes.torch.operators.declare import families_with
from treadle_shapes.torch.operators.record import Cost, ElementUse, Kind, Operator, Raises
from treadle_shapes.torch.operators.table import operator

__all__ = [
    "Cost",
    "ElementUse",
    "Kind",
    "Operator",
    "Raises",
    "binding_of",
    "binding_of_call",
    "families_with",
    "named_binding",
    "operator",
]
