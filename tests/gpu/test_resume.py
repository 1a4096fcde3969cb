"""A run on a GPU that was stopped goes on there."""

import pytest
import torch

from tests.faults.test_resume import numbers, stopped_at
from tests.faults.victim import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("moment", [5, 17, 40])
def test_a_stopped_run_goes_on_with_its_generator(moment, tmp_path):
    """As close as two runs of a GPU are: sums may be taken in another order."""
    whole = numbers(run(tmp_path / "whole").folder)
    stopped_at(moment, tmp_path / "parts")
    ours = numbers(run(tmp_path / "parts").folder)
    assert [event["kind"] for event in ours[1]] == [event["kind"] for event in whole[1]]
    for file, tensors in ours[2].items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, whole[2][file][name], rtol=1e-3, atol=1e-3)
