"""Concatenation of tensors whose sizes the data tells."""

from __future__ import annotations

import pytest
import torch
from golden_graphs import unbacked

from treadle_codegen import compile_graph
from treadle_codegen.costs import Costs
from treadle_codegen.ir.text import format_program
from treadle_codegen.lower import lower_graph

X, GROUP = torch.arange(60.0), torch.arange(60) * 7 % 40


def of_groups(count):
    """The items of `count` groups, one group behind the other."""
    return lambda x, group: torch.cat([x[group == number] + 1 for number in range(count)])


@pytest.mark.parametrize("count", [3, 40])
def test_results(count):
    gm, inputs = unbacked(of_groups(count), X, GROUP)()
    function = compile_graph(gm, inputs)
    for group in (GROUP, GROUP * 0 + count, GROUP // 2):
        assert torch.equal(function(X, group)[0], of_groups(count)(X, group))


def test_the_text_grows_with_the_number_of_tensors():
    """The place where each tensor begins is a sum of the sizes before it: all these sums together grow with the square of their number."""
    lengths = []
    for count in (40, 160):
        gm, inputs = unbacked(of_groups(count), X, GROUP)()
        lengths.append(len(format_program(lower_graph(gm, inputs, Costs()))))
    assert lengths[1] < 4.5 * lengths[0]
