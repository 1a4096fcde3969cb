"""What will hurt a run, found before it trains: a line each, with the remedy."""

from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from codecl.data.heterogeneity import heterogeneity
from codecl.data.inputs import take
from codecl.data.task import TaskData
from codecl.plan.graph import rounds, stable_below
from codecl.seeding import choose
from codecl.space import norms
from codecl.space.calling import call
from codecl.space.tracing import evaluating
from codecl.train import corrections
from codecl.train.state import Setup

FEW_TENFOLDS = 10  # a graph mixes slowly where a task's steps shrink disagreement tenfold fewer times than this
NARROW = 0.7  # of η · L: below this the paper's order is near its limit at rates that are usual
LARGE_ADAM = 0.01  # lr of adamw
NAMED = 5  # names in a line
SOME = 4  # images that are looked at together and each alone
NORMS_SUFFER = 0.5  # of the heterogeneity of one class each: from there on batch norms measure other statistics
GRAPHS_SUFFER = 0.75  # from there on a graph that mixes slowly costs points: docs/skewed-data.md
SMALL_GAP = 0.1  # 1 - √ρ of such a graph


def hazards(setup: Setup) -> Iterator[str]:
    """`field: what happens; what to do`."""
    yield from _small_parameters(setup)
    yield from _small_shards(setup)
    yield from _unequal_growth(setup)
    yield from _refused_growth(setup)
    yield from _slow_mixing(setup)
    yield from _pulled_apart(setup)
    yield from _narrow_steps(setup)
    yield from _large_steps(setup)
    yield from _batch_norms(setup)
    yield from _mixed_batches(setup)


def _small_parameters(setup: Setup) -> Iterator[str]:
    """Parameters that carry no coordinates, though nobody said so."""
    small = setup.roles.small
    if not small:
        return
    named = ", ".join(map(repr, small[:NAMED]))
    more = f" and {len(small) - NAMED} more" if len(small) > NAMED else ""
    if small[0] in setup.own_norms:
        rule = "each task has its own, as of norms (dense, frozen say otherwise)"
    elif small[0] in setup.roles.dense:
        rule = "trained whole in every task, as norms are, and may forget (frozen says otherwise)"
    else:
        rule = (
            "trained in the first task only, as norms are (norms='own' gives each task its own; dense, frozen say"
            " otherwise)"
        )
    yield f"model: {named}{more} {'multiplies' if len(small) == 1 else 'multiply'} no inputs: {rule}"


def _small_shards(setup: Setup) -> Iterator[str]:
    batch = setup.train.batch_size
    for data in setup.tasks:
        shard = min(map(len, data.partition))
        if shard < batch:
            yield (
                f"batch: an agent has {shard} images of task {data.name!r}, fewer than a batch of {batch}: it sees"
                f" images twice in one step; use train.batch_size={shard} or fewer agents"
            )
            return


def _unequal_growth(setup: Setup) -> Iterator[str]:
    """One agent grows the core space, and it is one of those that have few images."""
    if not setup.method.grows or setup.growth.subspace_from != "one":
        return
    wanted = max(setup.growth.by_layer(setup.roles.layers, 1).values(), default=0)
    for data in setup.tasks:
        has = len(data.partition[choose(setup.seed, data.index, setup.topology.agents)])
        if has < min(wanted, data.mean_images):
            yield (
                f"growth: the agent that grows the core space after task {data.name!r} has {has} images, and"
                f" growth.images asks for {wanted}: what others need may be left unprotected; use"
                " growth.subspace_from=all"
            )
            return


def _refused_growth(setup: Setup) -> Iterator[str]:
    """One agent grows, and others whose images are of other classes vote on it."""
    voted_on = setup.growth.robust == "vote" and setup.growth.subspace_from == "one"
    data = _skewed(setup, NORMS_SUFFER) if voted_on else None
    if data is not None:
        yield (
            f"growth: an agent's images of task {data.name!r} are of {classes_seen(data):.1f} classes on average, of"
            f" {data.classes}, and agents vote on what one of them grew from its own: they may refuse what is honest;"
            " use growth.subspace_from=all"
        )


def _slow_mixing(setup: Setup) -> Iterator[str]:
    name, tenfold = setup.topology.name, rounds(setup.gossip.contraction, 0.1, len(setup.gossip.mixings))
    steps = min(data.steps(setup.train.batch_size) for data in setup.tasks) * setup.train.epochs
    if tenfold > 1 and steps < FEW_TENFOLDS * tenfold:
        yield (
            f"mixing: {name} takes {tenfold} rounds to shrink disagreement tenfold, and a task has {steps}"
            " steps: agents learn apart from each other; use more links (--topology exponential), fewer agents or more"
            " epochs"
        )


def _pulled_apart(setup: Setup) -> Iterator[str]:
    """Agents whose data differ much, on a graph that brings them together slowly."""
    gap = 1 - setup.gossip.contraction
    if setup.topology.agents == 1 or gap >= SMALL_GAP or setup.train.correction != "none":
        return
    data = _skewed(setup, GRAPHS_SUFFER)
    if data is not None:
        yield (
            f"mixing: an agent's images of task {data.name!r} are of {classes_seen(data):.1f} classes on average, of"
            f" {data.classes}, and {setup.topology.name} mixes slowly (its spectral gap is {gap:.3f}): agents pull each"
            " other apart; use more links (--topology torus or exponential), or train.correction on an undirected graph"
        )


def _narrow_steps(setup: Setup) -> Iterator[str]:
    if setup.train.optimizer != "sgd":  # its steps do not grow with the curvature
        return
    train, mixings = setup.train, setup.gossip.mixings
    if train.correction != "none" and setup.topology.agents > 1:
        limit = corrections.stable_below(mixings, train.correction, train.momentum)
        if limit < NARROW:
            yield (
                f"lr: {train.correction} is stable only while lr × curvature is below {limit:.2f} on"
                f" {setup.topology.name} (train.lr is {train.lr:g}); use an undirected graph with more links"
            )
        return
    limit = stable_below(mixings, train.order)
    if setup.topology.agents > 1 and limit < NARROW:
        yield (
            f"lr: mixing before the step is stable only while lr × curvature is below {limit:.2f} on"
            f" {setup.topology.name} (train.lr is {setup.train.lr:g}); train.order=adapt-then-combine allows 2"
        )


def _large_steps(setup: Setup) -> Iterator[str]:
    if setup.train.optimizer == "adamw" and setup.train.lr > LARGE_ADAM:
        yield (
            f"lr: adamw moves every coordinate by about lr in a step, and train.lr is {setup.train.lr:g}; 1e-3 is usual"
        )


def _batch_norms(setup: Setup) -> Iterator[str]:
    if setup.topology.agents == 1 or not any(isinstance(layer, _BatchNorm) for layer in setup.module.modules()):
        return
    data = _skewed(setup, NORMS_SUFFER) if setup.train.norm_statistics != "gossip" else None
    if data is not None:
        yield (
            f"norms: an agent's images of task {data.name!r} are of {classes_seen(data):.1f} classes on average, of"
            f" {data.classes}: batch norms measure other statistics there than on all of them, and accuracy"
            " suffers; use group norms (train.norm_statistics=group for any model), or a more even data.partition"
        )


def _skewed(setup: Setup, part: float) -> TaskData | None:
    """The first task of which agents' mixes of classes differ by more than this part of what they can."""
    for data in setup.tasks:
        counts_AC = data.images_of_classes()
        if counts_AC is not None and heterogeneity(counts_AC).part > part:
            return data
    return None


def _mixed_batches(setup: Setup) -> Iterator[str]:
    """Whether images of a batch change each other's outputs in other ways than by batch norms."""
    names = norms.batch_norms(setup.module)
    sizes = {name: int(getattr(norm, "num_features", 0)) for name, norm in names.items()}
    plain = norms.unit_statistics(sizes, next(setup.module.parameters()))
    images = setup.tasks[0].first(SOME)
    try:
        with torch.no_grad(), evaluating(setup.module), norms.normalising(setup.module, plain):
            together = call(setup.module, {}, images)
            alone = torch.cat([call(setup.module, {}, take(images, slice(at, at + 1))) for at in range(SOME)])
    except (RuntimeError, ValueError, IndexError):  # it does not take a single image
        return
    if together.shape == alone.shape and not torch.allclose(together, alone, rtol=1e-2, atol=1e-3):
        yield (
            "model: what it gives for an image depends on the other images of its batch, also without batch norms:"
            " accuracies are of test batches, and single images may be classified otherwise"
        )


def classes_seen(data: TaskData) -> float:
    """Classes that an agent's images are of, on average over agents: e to the entropy of its labels, so that a class
    with few images counts little."""
    counts_AC = data.images_of_classes()
    if counts_AC is None:  # dealt at random
        return data.classes
    share_AC = counts_AC / counts_AC.sum(1, keepdim=True).clamp(min=1)
    return float(torch.special.entr(share_AC).sum(1).exp().mean())
