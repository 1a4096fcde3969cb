"""Scores batch by batch; on a GPU many batches in one go, which has to give the same."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from codecl.data.inputs import Batch, in_batches
from codecl.train import scoring
from tests.problems import normed


@pytest.mark.parametrize("images", [2, 7, 20, 21, 23])
@pytest.mark.parametrize("at_once", [1, 10, 1024])
def test_many_batches_in_one_go_give_what_one_after_another_gives(images, at_once, monkeypatch):
    """With a norm over the batch: each is normalised by itself. The last batch may be smaller, or larger by one."""
    monkeypatch.setattr(scoring, "TOGETHER", at_once)
    module, inputs = normed().double(), torch.randn(images, 2, 6, 6, dtype=torch.float64)
    for part in module:
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
    parameters = dict(module.named_parameters())
    module.eval()
    batches = in_batches(inputs, 5)
    with torch.no_grad():
        single = [functional_call(module, parameters, (batch,)) for batch in batches]
        found = scoring.together(lambda batch: functional_call(module, parameters, (batch,)), batches)
    assert len(found) == sum(len(batch) == len(batches[0]) for batch in batches)
    for a, b in zip(found, single, strict=False):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    whole = scoring.outputs(module, parameters, inputs, 5)
    torch.testing.assert_close(whole, torch.cat(single), rtol=0, atol=1e-12)
    labels = torch.zeros(images, dtype=torch.long)
    expected = functional.cross_entropy(torch.cat(single), labels).item()
    assert scoring.loss(module, parameters, [Batch(inputs, labels)], 5) == pytest.approx(expected)


def test_what_cannot_be_stacked_is_left_to_be_done_one_by_one():
    def looks_at_values(batch):
        return batch * 2 if batch.sum() > 0 else batch

    assert scoring.together(looks_at_values, torch.randn(4, 3, 2).unbind()) == []
