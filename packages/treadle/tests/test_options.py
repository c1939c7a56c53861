from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from treadle.errors import OptionValue, UnknownName
from treadle.options import OPTIONS, Config, compile_options


def test_declarations_match_the_packages():
    from treadle_codegen import CodegenOptions
    from treadle_tracer.options import TracerOptions

    def declared(owner):
        return {o.name for o in OPTIONS if o.owner == owner}

    assert declared("codegen") <= {f.name for f in fields(CodegenOptions)}
    assert declared("tracer") <= {f.name for f in fields(TracerOptions)}
    assert all(o.help and o.name not in {p.name for p in OPTIONS if p is not o} for o in OPTIONS)
    for o in OPTIONS:
        if o.default is not None and o.owner == "codegen":
            assert getattr(CodegenOptions(), o.name) == o.default
        if o.owner == "tracer":
            assert getattr(TracerOptions(), o.name) == o.default


def test_patch_restores_even_after_an_error():
    config = Config()
    with pytest.raises(RuntimeError), config.patch(verify=True, threads=3):
        assert config.verify is True and config.threads == 3
        raise RuntimeError
    assert config.verify is False and config.threads == 0


def test_config_refuses_unknown_names_and_wrong_types():
    config = Config()
    with pytest.raises(UnknownName, match="did you mean 'verify'"):
        config.verfy = True
    with pytest.raises(AttributeError, match="did you mean 'threads'"):
        config.thread  # noqa: B018
    with pytest.raises(OptionValue, match="'threads' must be int"):
        config.threads = "two"
    with pytest.raises(OptionValue):
        config.verify = 1
    assert "raise_internal_errors" in config.help()


def test_the_environment_sets_the_default(monkeypatch):
    monkeypatch.setenv("TREADLE_RAISE_INTERNAL_ERRORS", "1")
    assert Config().raise_internal_errors is True
    monkeypatch.setenv("TREADLE_RAISE_INTERNAL_ERRORS", "0")
    assert Config().raise_internal_errors is False


def test_options_of_a_compile_override_the_process(tmp_path):
    options = compile_options(
        True, None, "default", {"cache_dir": str(tmp_path), "recompile_limit": 3}, own_backend=True
    )
    assert options.for_codegen().cache_dir == Path(tmp_path)
    tracer = options.for_tracer()
    assert (tracer.fullgraph, tracer.recompile_limit) == (True, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (False, None, "reduce-overheads", None),
            "unknown mode 'reduce-overheads' .did you mean 'reduce-overhead'.*; allowed: 'default'",
        ),
        (
            (False, None, None, {"max_fusion_member": 3}),
            "unknown option 'max_fusion_member' .did you mean 'max_fusion_members'.",
        ),
        ((False, None, None, {"threads": "x"}), "option 'threads' must be int, got 'x'"),
        ((False, None, None, ["threads"]), "options must be a dict"),
        (("yes", None, None, None), "fullgraph must be True or False, got 'yes'"),
        ((False, "auto", None, None), "dynamic must be None, True or False, got 'auto'"),
    ],
)
def test_errors_name_what_was_given_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        compile_options(*arguments, own_backend=True)


def test_unprofitable_functions_are_left_to_python_where_the_costs_are_known():
    def leaves(fullgraph, is_codegen, **given):
        options = compile_options(fullgraph, None, None, given, own_backend=True)
        return options.for_tracer(is_codegen=is_codegen).leave_unprofitable

    assert leaves(False, True, leave_unprofitable=True)
    assert not leaves(True, True, leave_unprofitable=True)
    assert not leaves(False, False, leave_unprofitable=True)
    assert not leaves(False, True, leave_unprofitable=False)


def test_setup_runs_in_eager_under_the_backend_codegen_alone():
    options = compile_options(True, None, None, {"setup_in_eager": True}, own_backend=True)
    assert options.for_tracer(is_codegen=True).setup_in_eager
    assert not options.for_tracer(is_codegen=False).setup_in_eager
