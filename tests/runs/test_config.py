"""Presets and what is resolved from them."""

from codecl.runs.grid import preset, resolve


def test_a_preset_with_a_base_is_that_preset_but_for_what_it_changes():
    for name, milestones in (("split-cifar100", []), ("split-miniimagenet", [7, 8]), ("five-datasets", [37, 38])):
        theirs = preset(f"{name}-authors")
        assert (theirs.paper, theirs.methods) == (name, preset(name).methods)
        for method, norms in (("codec", "first"), ("d-ewc", "shared"), ("stl", "shared")):
            printed, code = (resolve(one, {"method": {"name": method}}) for one in (preset(name), theirs))
            assert (code.train.order, code.data.drop_last, code.norms) == ("adapt-then-combine", False, norms)
            same = {"norms": "first", "preset": name, "data": printed.data, "sources": printed.sources}
            train = {"order": "paper", "milestones": printed.train.milestones}
            again = code.model_copy(update={**same, "train": code.train.model_copy(update=train)})
            assert again == printed, "all else is the base's, also what it changes by method"
            earlier = [epoch for epoch in range(100) if code.train.lr_at(epoch) != printed.train.lr_at(epoch)]
            assert earlier == milestones[:1]


def test_the_preset_for_uneven_data_averages_exactly_in_every_step():
    """One-peer exponential: log2 of the agents rounds."""
    for rounds in range(2, 7):
        assert resolve(preset("split-cifar100-uneven"), {"agents": 2**rounds}).train.gossip_rounds == rounds
