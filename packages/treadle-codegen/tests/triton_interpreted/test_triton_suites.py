"""The end-to-end suites of the other folders, run again as Triton kernels.

Each module of `SUITES` is loaded a second time, and its tests are collected here under a name with the module's. `ABOUT_CPP`
lists the tests that are about compiled C++ and not about what a graph computes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from other_targets import suites_again

SUITES = {
    "pipeline": "test_pipeline.py",
    "raising": "test_raising.py",
    "unbacked_numbers": "test_unbacked_numbers.py",
    "scatter": "lower/test_scatter.py",
    "complex_numbers": "lower/test_complex_numbers.py",
    "dynamic_kernels": "targets/cpp/test_dynamic_kernels.py",
}
ABOUT_CPP = set(
    """
    test_nothing_is_written_where_a_position_is_out_of_range test_nothing_is_written_after_another_read_was_out_of_range
    test_without_a_compiler_the_error_names_what_was_looked_for test_a_second_process_finds_the_library
    test_kernels_do_not_depend_on_the_numbering_of_symbols test_rows_that_do_not_fit_the_stack
    test_a_row_of_unknown_length_is_an_array_on_the_stack test_odd_rows_of_known_length_are_walked_in_chunks
    test_rows_of_elements_that_lie_apart_are_no_chunks test_columns_of_unknown_number_for_all_sizes_and_for_one
    test_kernels_whose_bits_might_change_keep_their_numbers test_a_compile_is_cut_short_at_the_end_of_the_process
    """.split()
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


found = suites_again(SUITES, "triton", ABOUT_CPP)
# Threads take turns many times in one interpreted call, which takes 0.2 s.
found["test_pipeline_concurrent_calls_have_their_own_workspace"].__globals__["CALLS"] = 5
globals().update(found)
