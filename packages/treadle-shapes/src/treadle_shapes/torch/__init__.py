"""The part of treadle-shapes for PyTorch. Only this subpackage needs torch.

    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    batch = env.create_symbol(x.shape[0], "L['x'].size()[0]")
    fake = fake_tensor(mode, x, (batch, None))          # None: that size stays a constant

This module is the whole interface: other packages import nothing from the modules below it.
"""

from __future__ import annotations

from treadle_shapes.sym_node import BOOL_BINARY, BOOL_UNARY, FLOAT_BINARY, FLOAT_UNARY, INT_BINARY, INT_UNARY
from treadle_shapes.torch.autograd_state import undisturbed
from treadle_shapes.torch.begun_histories import begin_history, is_at_beginning
from treadle_shapes.torch.checked_writes import quick_checks
from treadle_shapes.torch.descriptions import NotDescribed, described
from treadle_shapes.torch.fake_call_cache import FakeCallCache
from treadle_shapes.torch.fake_registration import register_fake
from treadle_shapes.torch.fake_tensors import fake_like, fake_mode, fake_view
from treadle_shapes.torch.function_transforms import (
    dispatch_keys_restored,
    is_transforming,
    outside_transforms,
    unwrapped,
)
from treadle_shapes.torch.generator_states import (
    checked_state,
    drawing,
    fills_first_argument,
    restore_default_state,
    seed_default,
    seeded_state,
    why_not_draw,
)
from treadle_shapes.torch.graph_calls import NUMBER_FUNCTIONS, build_calls, call_on_symbolic
from treadle_shapes.torch.graph_modules import HooklessGraphModule
from treadle_shapes.torch.inference_mode import (
    enter_inference_mode,
    inference_mode_depth,
    leave_inference_mode,
    leave_inference_modes,
)
from treadle_shapes.torch.kept_calls import environment as fake_call_environment
from treadle_shapes.torch.kept_calls import keep_fake_calls, save_fake_calls, sources_in, states_of
from treadle_shapes.torch.light_imports import check_with
from treadle_shapes.torch.operators import (
    Cost,
    ElementUse,
    Kind,
    Operator,
    Raises,
    binding_of,
    binding_of_call,
    families_with,
    named_binding,
    operator,
)
from treadle_shapes.torch.ours import env_of, raw_expr
from treadle_shapes.torch.preserved import preserved_operators
from treadle_shapes.torch.random_replay import GENERATOR_STATE_BYTES, generator_state, replay_of, why_not_replay
from treadle_shapes.torch.refused_dtypes import ask_kernel
from treadle_shapes.torch.shape_env import (
    FakeShapeEnv,
    expr_of,
    fake_shape_env,
    fake_tensor,
    refusing_plain_numbers,
    sym_float,
    sym_int,
    symbolic_dispatch,
    symbolic_strides,
)
from treadle_shapes.torch.size_oblivious import answer_size_obliviously, run_for_metadata
from treadle_shapes.torch.static_calls import fake_call_settings, fake_calls, static_call_key
from treadle_shapes.torch.unrecorded_views import is_made_in_no_grad, is_made_without_gradients
from treadle_shapes.torch.version_counters import share_version_counter

__all__ = [
    "NotDescribed",
    "described",
    "HooklessGraphModule",
    "BOOL_BINARY",
    "BOOL_UNARY",
    "FLOAT_BINARY",
    "FLOAT_UNARY",
    "INT_BINARY",
    "INT_UNARY",
    "NUMBER_FUNCTIONS",
    "Cost",
    "ElementUse",
    "FakeCallCache",
    "FakeShapeEnv",
    "Kind",
    "Operator",
    "Raises",
    "answer_size_obliviously",
    "begin_history",
    "binding_of",
    "binding_of_call",
    "build_calls",
    "call_on_symbolic",
    "dispatch_keys_restored",
    "env_of",
    "expr_of",
    "fake_calls",
    "fake_like",
    "fake_mode",
    "fake_shape_env",
    "fake_tensor",
    "fake_view",
    "families_with",
    "is_at_beginning",
    "is_transforming",
    "keep_fake_calls",
    "named_binding",
    "operator",
    "outside_transforms",
    "preserved_operators",
    "quick_checks",
    "raw_expr",
    "refusing_plain_numbers",
    "register_fake",
    "run_for_metadata",
    "save_fake_calls",
    "is_made_in_no_grad",
    "is_made_without_gradients",
    "share_version_counter",
    "sym_float",
    "sym_int",
    "symbolic_dispatch",
    "symbolic_strides",
    "undisturbed",
    "GENERATOR_STATE_BYTES",
    "generator_state",
    "replay_of",
    "ask_kernel",
    "check_with",
    "checked_state",
    "drawing",
    "enter_inference_mode",
    "fills_first_argument",
    "seed_default",
    "seeded_state",
    "restore_default_state",
    "why_not_draw",
    "inference_mode_depth",
    "leave_inference_mode",
    "leave_inference_modes",
    "why_not_replay",
    "unwrapped",
    "fake_call_environment",
    "fake_call_settings",
    "sources_in",
    "states_of",
    "static_call_key",
]
