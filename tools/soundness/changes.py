"""Random changes between two calls: source text that is executed in both worlds, or once for state of the process."""

from __future__ import annotations

from soundness.world import Maker

IN_WORLD = {
    "instances": (
        "{o}.{a} = {v}",
        "object.__setattr__({o}, '{a}', {v})",
        "del {o}.{a}",
        "vars({o})['{a}'] = {v}",
        "vars({o}).pop('{a}', None)",
        "vars({o}).clear()",
        "vars({o})['get'] = lambda: {v}",
        "{o}.__dict__ = {{'{a}': {v}}}",
        "{o}.__class__ = {C}",
        "o0 = o1",
        "o1 = {C}()",
    ),
    "classes": (
        "{C}.{a} = {v}",
        "del {C}.{a}",
        "{C}.get = lambda self: {v}",
        "{C}.{a} = property(lambda self: {v})",
        "{C}.__len__ = lambda self: {n}",
        "{C}.__bool__ = lambda self: {b}",
        "{C}.__eq__ = lambda self, other: {b}",
        "{C}.__getattr__ = lambda self, name: {v}",
        "{C}.__call__ = lambda self, x: x - {n}",
        "{C}.__radd__ = lambda self, other: {v}",
        "{C}.__iter__ = lambda self: iter([{v}])",
        "{C}.__contains__ = lambda self, item: {b}",
        "{C}.__getattribute__ = lambda self, name: {v} if name == '{a}' else object.__getattribute__(self, name)",
        "del {C}.__len__",
        "del {C}.__call__",
        "del {C}.get",
        "del {C}.__getattribute__",
        "{C}.__bases__ = ({C2},)",
        "{C}.__name__ = 'N{i}'",
    ),
    "containers": (
        "L.append({v})",
        "L[0] = {v}",
        "L[:] = [{v}, 2.5]",
        "L = list(L)",
        "L = D['list']",
        "D['list'] = L",
        "D['{a}'] = {v}",
        "D.pop('{a}', None)",
        "D = dict(reversed(D.items()))",
        "S.add({n})",
        "S = {{True, 2}}",
        "S.discard({n})",
        "T = ({v},)",
        "Q.append({v})",
        "Q.clear()",
    ),
    "globals and functions": (
        "{g} = {v}",
        "G2 = torch.zeros(3)",
        "del {g}",
        "len = lambda v: {n}",
        "globals().pop('len', None)",
        "isinstance = lambda v, t: {b}",
        "globals().pop('isinstance', None)",
        "h0.__code__ = (lambda v: (v, 'new')).__code__",
        "h1.__defaults__ = ({v},)",
        "h1.__kwdefaults__ = {{'w': {v}}}",
        "h2.__defaults__ = ({v},)",
        "h2 = lambda u=1: {v}",
        "h0 = h1",
        "set_cell({v})",
        "G3.__code__ = (lambda v=1: {v}).__code__",
        "P.second = property(lambda self: {v})",
        "E.A._value_ = {v}",
    ),
    "modules": (
        "m0.train()",
        "m0.eval()",
        "m0.width = {n}",
        "M.width = {n}",
        "m0.extra = {v}",
        "M.extra = {v}",
        "m0.weight.data.add_(1)",
        "m0.weight.data = torch.ones(5)",
        "m0.weight = torch.nn.Parameter(torch.ones({n} if isinstance({n}, int) else 3))",
        "m0.weight.requires_grad_({b})",
        "m0.steps += 1",
        "m0.__dict__['forward'] = lambda x: x - {n}",
        "m0.__dict__.pop('forward', None)",
        "M.forward = lambda self, x: x + {n}",
        "m0.register_forward_hook(lambda module, args, result: result + {n})",
        "m0.register_forward_pre_hook(lambda module, args: (args[0] * 2,))",
        "m0._forward_hooks.clear()",
        "m1[1] = m0",
        "m1.append(torch.nn.ReLU())",
        "m1[0].weight.data.mul_(2)",
        "m1.train({b})",
        "m1.__class__ = type('Other', (torch.nn.Sequential,), {{'forward': lambda self, x: x * {n}}})",
    ),
}
"""Executed in each world, by what they change."""

IN_PROCESS = (
    "torch.set_grad_enabled({b})",
    "torch.set_default_dtype(torch.float64 if {b} else torch.float32)",
    "torch.use_deterministic_algorithms({b}, warn_only=True)",
    "torch.set_float32_matmul_precision('high' if {b} else 'highest')",
    "torch.set_num_threads(2 if {b} else 1)",
    "torch.autograd.set_detect_anomaly({b}, check_nan=False)",
    "torch.backends.cuda.enable_flash_sdp({b})",
    "torch.set_autocast_enabled('cpu', {b})",
    "torch.relu = torch.abs if {b} else ORIGINALS['relu']",
    "F.silu = torch.tanh if {b} else ORIGINALS['silu']",
    "math.floor = math.ceil if {b} else ORIGINALS['floor']",
)
"""Executed once, with `ORIGINALS` the functions that they replace; `run` undoes all of them after a case."""


def change(maker: Maker) -> tuple[str, str]:
    """("world" | "process", source text)."""
    if maker.rng.random() < 0.12:
        return "process", maker.fill(maker.rng.choice(IN_PROCESS))
    return "world", maker.fill(maker.rng.choice([text for texts in IN_WORLD.values() for text in texts]))
