"""`importlib.import_module`, with which PyTorch and other libraries load their submodules when somebody asks for them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE
from treadle_tracer.values.module_attributes import import_module
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def _import_module(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("name", "package"), args, strict=False)) | kwargs
    name, package = given.pop("name", NONE), given.pop("package", NONE)
    if given or len(args) > 2 or not (name.is_constant() and package.is_constant()):
        raise Unsupported("import", "importlib.import_module of a name that is not constant")
    text, anchor = name.constant(), package.constant()
    if type(text) is not str or (text.startswith(".") and type(anchor) is not str):
        raise Unsupported("import", "importlib.import_module of no name")
    try:
        absolute = importlib.util.resolve_name(text, anchor)
    except ImportError as error:
        tx.raise_real(error)
    return import_module(tx, absolute)


RULES = (Rule(importlib.import_module, _import_module, Effect.WRITES_STATE),)
