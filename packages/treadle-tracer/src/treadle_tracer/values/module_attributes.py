"""Attributes of Python modules, `import` statements: read from the real modules, with what the reading relied on."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.backends import ContextProp

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource, ConstSource, DictItemSource, ModuleAttrSource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def attribute_of_python_module(tx: TraceContext, module: types.ModuleType, name: str) -> Value:
    """`module.name` as Python finds it: a property of the module's class, the module's dict, its `__getattr__`."""
    if module is torch and name in getattr(torch, "_lazy_modules", ()):
        importlib.import_module(
            f"torch.{name}"
        )  # as its `__getattr__` does; a guard that the name is missing would fail from now on
    cls = type(module)
    tx.guards.add(ConstSource(module), "type_is", cls)
    value = getattr(
        module, name, MISSING
    )  # may import a submodule that the module loads on demand, as the program does
    on_class = lookup(tx, cls, name)
    if isinstance(on_class, ContextProp):
        # `torch.backends.cudnn.enabled`: the trace may have set what the getter reads.
        with contextlib.suppress(Unsupported):
            return tx.wrap_known(on_class.getter).call(tx, [], {})
    if on_class is not MISSING and not (cls is types.ModuleType and name in vars(module)):
        return _checked(tx, module, name, value, AttrSource(ConstSource(module), name))
    if name in vars(module):
        return tx.wrap_name(value, ModuleAttrSource(module, name), module.__name__)
    contents = ConstSource(vars(module), f"vars({module.__name__})")
    tx.guards.add(contents, "lacks_key", name)
    if lookup(tx, cls, "__getattr__") is not MISSING:
        return _checked(tx, module, name, value, AttrSource(ConstSource(module), name))
    hook = vars(module).get("__getattr__")
    if hook is not None:
        return tx.wrap(hook, ModuleAttrSource(module, "__getattr__")).call(tx, [Constant(name)], {})
    tx.guards.add(contents, "lacks_key", "__getattr__")
    return tx.raise_exception(AttributeError, f"module {module.__name__!r} has no attribute {name!r}")


def _checked(tx: TraceContext, module: types.ModuleType, name: str, value: Any, source: AttrSource) -> Value:
    """A value that only `getattr` gives."""
    if value is MISSING:
        tx.guards.add(ConstSource(module), "lacks_attr", name)
        tx.raise_exception(AttributeError, f"module {module.__name__!r} has no attribute {name!r}")
    if type(value) is types.MethodType:  # made anew by every reading, so that its identity tells nothing
        return tx.wrap(value, source)
    return tx.wrap_name(value, source, module.__name__)


def loaded_module(tx: TraceContext, name: str) -> Value:
    """The module in `sys.modules` under a name."""
    tx.guards.add(ConstSource(sys.__dict__, "vars(sys)"), "has_key", "modules")
    source = DictItemSource(ConstSource(sys.modules, "sys.modules"), name)
    tx.guards.add(source, "is", sys.modules[name])
    return tx.wrap_known(sys.modules[name])


def import_name(tx: TraceContext, globals_: dict[str, Any], name: str, names: Value, level: int) -> Value:
    """The `import` statement; a module that is not loaded yet is loaded, as it would be."""
    importer = tx.load_global(globals_, "__import__")
    if not importer.is_constant() or importer.constant() is not _IMPORT:
        raise Unsupported("import", f"{name} through another __import__")
    if level:
        package = globals_.get("__package__") or globals_["__name__"]
        name = importlib.util.resolve_name("." * level + name, package)
    found = import_module(tx, name)
    has_names = not (names.is_constant() and not names.constant())
    return found if has_names else loaded_module(tx, name.partition(".")[0])


def import_module(tx: TraceContext, name: str) -> Value:
    """The module of an absolute name, loaded now if it is not yet."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        tx.raise_real(error)
    return loaded_module(tx, name)


def import_from(tx: TraceContext, module: Value, name: str) -> Value:
    """`from module import name`: an attribute, or a submodule."""
    try:
        return module.get_attr(tx, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
    submodule = f"{module.constant().__name__}.{name}"
    if submodule not in sys.modules:
        tx.raise_exception(ImportError, f"cannot import name {name!r} from {module.describe()!r}")
    return loaded_module(tx, submodule)


_IMPORT = __builtins__["__import__"] if isinstance(__builtins__, dict) else __builtins__.__import__
