"""Data set -> ordered tasks -> a shard for each agent -> batches.

Shapes: A agents of this process, B images of a batch, S steps of an epoch, K numbers that pick an image (sources.py).
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from codecl.data import partition as partitions
from codecl.data.config import DataConfig
from codecl.data.conversion import Collate
from codecl.data.forms import collate_of
from codecl.data.images import PADDING, prepared, scale_of, seen_as_0
from codecl.data.inputs import Batch, Inputs, each, in_batches, shape_of, tensors_of
from codecl.data.items import About
from codecl.data.partition import SAMPLERS, Draw, Partition, Sampler, subsets
from codecl.data.sources import Picked, Source, source_of
from codecl.data.targets import Targets, are_classes
from codecl.errors import ConfigError, DataError
from codecl.seeding import spawn

MANY = 8192  # streamed images of an agent by which statistics of norms are measured, at most


class Task(NamedTuple):
    """One task: images with labels 0 .. classes - 1; or, for another loss than cross-entropy, with numbers [n] or
    [n, k], and then `classes` is the number of outputs.

    `train` and `test` are (images, labels), a data set, a DataLoader or a list of items (docs/own-data.md). Images are
    uint8 (scaled to 0 .. 1), floating (taken as they are) or other integers (tokens: not touched); there may be several
    inputs, a tuple or a dict of such tensors. `collate` makes (inputs, labels) of a list of items."""

    train: Any
    test: Any
    classes: int
    name: str = ""
    mean: tuple[float, ...] = ()  # by channel, after scaling; empty: leave as is
    std: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()  # what the classes are called
    original: tuple[int, ...] = ()  # the shape of an image as its data set has it, where the task's is another
    collate: Collate | None = None  # for items that cannot be stacked as they are


class TaskInfo(BaseModel):
    """What one has to know to prepare an image for a task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    classes: int
    labels: tuple[str, ...]  # what the classes are called; empty: by their numbers
    shape: tuple[int, ...]  # of an image
    original: tuple[int, ...]  # as its data set has it
    stored: str  # type of the images
    mean: tuple[float, ...]
    std: tuple[float, ...]


class TaskOptions(NamedTuple):
    """What the tasks of a run have in common: who learns them, and how images are stored, dealt and drawn."""

    agents: int
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    config: DataConfig = DataConfig()
    targets: Targets = "classes"  # what the loss takes
    partition: Partition | None = None  # which images each agent has; None: as the config says
    sampler: Sampler | None = None  # in which order they come; None: as the config says


class TaskData:
    """A task on the device, dealt to agents."""

    def __init__(self, index: int, task: Task, options: TaskOptions) -> None:
        config, about = options.config, about_of(index, task, "training", options.targets)
        name, classes = about.task, about.classes
        self.index, self.name, self.classes, self.task = index, name, classes, task
        train = source_of(task.train, about, config.loading, config.workers)
        self.has_classes = are_classes(train.some_labels(), classes, options.targets)
        if config.validation:
            kinds = train.all_labels() if self.has_classes else torch.zeros(train.size, dtype=torch.long)
            cut = partitions.validation(name, kinds, config.validation, options.seed, index)
            train, test = (train.subset(indices) for indices in cut)
        else:
            test = source_of(task.test, about._replace(split="test"), config.loading, config.workers)
        if task.labels and len(task.labels) != classes:
            raise ConfigError(f"task {name!r}: {len(task.labels)} labels for {classes} classes")
        self._own = bool(config.local_path)
        self._by_class = config.partition != "iid" and not self._own
        self._uneven = self._by_class or (config.sizes != "equal" and not self._own)
        self.agents, self.seed = options.agents, options.seed
        self.dtype, self.augment, self.device = options.dtype, config.augment, options.device
        self.train, self.test = (source.to(self.device, self.dtype) for source in (train, test))
        first = self.train.first(1)
        shapes = [shape_of(images) for images in (first, self.test.first(1))]
        if shapes[0] != shapes[1] and not any((task.collate, collate_of(task.train), collate_of(task.test))):
            raise DataError(f"task {name!r}: training images are {shapes[0]}, test images {shapes[1]}")
        self.scale = scale_of(name, (task.mean, task.std), first, options.dtype)
        self._shape, self._stored = tuple(tensors_of(first)[0].shape[1:]), _type_of(first)
        dealt = options.partition if options.partition is not None else self._partition(options)
        cuts = [self._cut(agent, shard, config.held_out) for agent, shard in enumerate(dealt)]
        self.partition, self._held_out = [shard for shard, _ in cuts], [held_out for _, held_out in cuts]
        self.sampling, self._sampler = config.sampling, options.sampler or SAMPLERS.get(config.sampling)
        self._secret, self._draws = b"", 0
        self._steps, self._drop_last = config.steps_per_epoch, config.drop_last
        if self.augment != "none":
            colour = seen_as_0(tensors_of(first)[0], self.scale) if config.crop_fill == "mean" else None
            self.train = self.train.cropping(name, colour)

    def draw_in_secret(self) -> None:
        """From now on nobody who knows the seed can tell which subsets are drawn, and none is drawn again."""
        self._secret = secrets.token_bytes(32)

    def _partition(self, options: TaskOptions) -> Partition:
        """A shard of the common images for each agent. Of data of its own, which may lack classes, the one agent here
        has all, whichever number it has."""
        size, agents = self.train.size, options.agents
        if options.config.local_path:
            return (torch.arange(size),) * agents
        if not self.has_classes and self._by_class:
            raise ConfigError(
                f"data.partition: {options.config.partition} deals images by their class, and labels of task"
                f" {self.name!r} are no classes; use iid"
            )
        if not self.labels_known:  # not read for the sake of their labels
            labels = torch.empty(size, dtype=torch.uint8)
        else:
            labels = self.train.all_labels()
            if options.targets == "classes":
                self._check_all_classes(labels)
        if size < agents:
            raise ConfigError(f"agents: {agents} is more than the {size} training images of task {self.name!r}")
        config = options.config
        return partitions.partition(config.partition, labels, agents, self.seed, self.index, config.sizes)

    def _check_all_classes(self, labels: Tensor) -> None:
        empty = (torch.bincount(labels, minlength=self.classes) == 0).nonzero().flatten().tolist()
        if empty:
            raise DataError(f"task {self.name!r}: class {empty[0]} has no training images")

    def _cut(self, agent: int, shard: Tensor, part: float) -> tuple[Tensor, Tensor]:
        """An agent's images: those that it trains on, and those that it holds out."""
        if not part:
            return shard, shard[:0]
        order = torch.randperm(len(shard), generator=spawn(self.seed, "held out", agent, self.index))
        count = max(1, round(part * len(shard)))
        if 0 < len(shard) <= count:
            raise ConfigError(
                f"data.held_out: {part:g} leaves agent {agent}, which has {len(shard)} images of task {self.name!r},"
                " none to train on; lower it"
            )
        return shard[order[count:]], shard[order[:count]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image; of several inputs, that of the first."""
        return self._shape

    def describe(self) -> TaskInfo:
        return TaskInfo(
            name=self.name,
            classes=self.classes,
            labels=self.task.labels,
            shape=self.shape,
            original=self.task.original or self.shape,
            stored=self._stored,
            mean=self.task.mean,
            std=self.task.std,
        )

    def class_counts(self) -> dict[str, list[int]] | None:
        """For each class, how many training images each agent has of it. None where all have as many, dealt iid; where
        labels are not known; and where an agent has images of its own, which no other knows."""
        counts_AC = self.images_of_classes() if self._uneven else None
        return None if counts_AC is None else dict(zip(self.class_names, counts_AC.mT.tolist(), strict=True))

    def own_class_counts(self) -> dict[str, int] | None:
        """Of an agent with images of its own: for each class, how many it has."""
        counts_AC = self.images_of_classes() if self._own else None
        return None if counts_AC is None else dict(zip(self.class_names, counts_AC[0].tolist(), strict=True))

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called; their numbers where that would not tell them apart."""
        names = self.task.labels
        return names if len({*names}) == self.classes else tuple(map(str, range(self.classes)))

    def images_of_agents(self) -> list[int] | None:
        """How many training images each agent has. None as for their classes, but that no labels are needed."""
        return [len(shard) for shard in self.partition] if self._uneven else None

    @property
    def labels_known(self) -> bool:
        """Whether there are classes, and they are read before training: not of items that are streamed for nothing
        else."""
        return self.has_classes and (not self.train.streamed or self._by_class)

    def images_of_classes(self) -> Tensor | None:
        """How many training images of each class an agent has [A, C]; None where labels are read with the images."""
        if not self.labels_known:
            return None
        labels = self.train.all_labels()
        return torch.stack([labels[shard].bincount(minlength=self.classes) for shard in self.partition])

    @property
    def mean_images(self) -> int:
        """Training images that an agent has on average: an epoch goes through so many of each."""
        return sum(map(len, self.partition)) // len(self.partition)

    def steps(self, batch: int) -> int:
        """Steps of an epoch, the same for every agent: as the config says, or ⌊mean images / batch⌋ and the last."""
        return self._full(batch) + (self._last(batch) > 0)

    def _full(self, batch: int) -> int:
        """Full batches of an epoch."""
        if self._steps is not None:
            return self._steps
        images = self.mean_images
        if batch > images:
            average = "has" if len({*map(len, self.partition)}) == 1 else "has on average"
            raise ConfigError(
                f"train.batch_size: {batch} is more than the {images} images that an agent {average} of task"
                f" {self.name!r}; use a batch of at most {images}, fewer agents or data.steps_per_epoch"
            )
        return images // batch

    def _last(self, batch: int) -> int:
        """Images of an epoch's last, smaller batch, the same for every agent; a single one is left out: norms need
        more."""
        if self._drop_last or self._steps is not None:
            return 0
        left = self.mean_images % batch
        return left if left > 1 else 0

    def indices(self, epoch: int, agents: Sequence[int], batch: int) -> list[Tensor]:
        """The images of each step, as the sampler draws them from each agent's shard, on the CPU: the full batches
        [S, A, B, K], then the last one [1, A, b, K] where it is smaller and not left out."""
        full, last = self._full(batch), self._last(batch)
        batches = [batch] * full + [last] * (last > 0)
        rows_AIK = torch.stack([self._indices(agent, epoch, batches) for agent in agents])
        parts = rows_AIK.split([full * batch, last], 1)
        sizes = [(full, batch), (1, last)] if last else [(full, batch)]
        by_step = (part.unflatten(1, size).transpose(0, 1) for part, size in zip(parts, sizes, strict=False))
        return [part_SABK.contiguous() for part_SABK in by_step]

    @property
    def streamed(self) -> bool:
        """Whether training images are read anew in every epoch."""
        return self.train.streamed

    def reading(self) -> AbstractContextManager[None]:
        """In here what reads ahead stays from one epoch to the next."""
        return self.train.reading()

    def read_ahead(self, indices_SABK: Tensor) -> Iterable[Picked]:
        """What `batch` takes, step by step: the indices themselves, or where items are streamed what was read."""
        return self.train.read_ahead(indices_SABK)

    def batch(self, picked: Picked) -> Batch:
        """These images, prepared, on the device: nothing here waits for it where they are in memory."""
        images, labels = self.train.fetch(picked)
        return Batch(self.prepare(images), labels)

    def epoch(self, epoch: int, agents: Sequence[int], batch: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        for indices_SABK in self.indices(epoch, agents, batch):
            yield from self._prepared(self.train, indices_SABK)

    def sample(self, agent: int, images: int) -> Inputs:
        """Some images of an agent's shard, for growth."""
        order = torch.randperm(len(self.partition[agent]), generator=spawn(self.seed, "growth", agent, self.index))
        which = self.partition[agent][order[:images]]
        (batch,) = self._whole(self.train, which, len(which), "growth items", agent)
        return batch.images_AB

    def of_agent(self, agent: int, batch: int) -> Iterator[Inputs]:
        """All images of an agent's shard, prepared but not varied, in batches of mixed classes; many of them where they
        are streamed."""
        shard = self.partition[agent]
        order = shard[torch.randperm(len(shard), generator=spawn(self.seed, "norms", agent, self.index))]
        order = order[:MANY] if self.streamed else order
        picks = self.train.picks(order[:, None], spawn(self.seed, "norms items", agent, self.index))
        for images, _ in self._prepared(self.train, in_batches(picks, batch)):
            yield images

    def held_out(self, agent: int, batch: int, epoch: int) -> Iterator[Batch]:
        """The images of an agent's shard that it does not train on, prepared, in another order after each epoch (norms
        see other batches); in batches where they are streamed."""
        images = self._held_out[agent]
        order = torch.randperm(len(images), generator=spawn(self.seed, "held out order", agent, self.index, epoch))
        return self._whole(self.train, images[order], batch, "held out items", agent)

    def test_images(self, batch: int, seen_as: "TaskData | None" = None) -> Iterator[Batch]:
        """The test images, prepared, in an order of their own (norms see batches of mixed classes); in batches where
        they are streamed. `seen_as`: scaled as the images of this task are."""
        order = torch.randperm(self.test.size, generator=spawn(self.seed, "test", self.index))
        return (seen_as or self)._whole(self.test, order, batch, "test items")

    def first(self, many: int) -> Inputs:
        """So many training images, prepared: from the first on, and again where there are fewer."""
        return self.prepare(self.train.first(many))

    def prepare(self, images: Inputs) -> Inputs:
        """Stored images -> what the model sees."""
        return each(lambda tensor: prepared(tensor, self.scale, self.dtype), images)

    def _whole(self, source: Source, which: Tensor, batch: int, purpose: str, *path: int) -> Iterator[Batch]:
        """These images, prepared: at once where they are in memory, else in batches."""
        picks = source.picks(which[:, None], spawn(self.seed, purpose, *path, self.index))
        return self._prepared(source, in_batches(picks, batch) if source.streamed else [picks])

    def _prepared(self, source: Source, picks: Iterable[Tensor]) -> Iterator[Batch]:
        for picked in source.read_ahead(picks):
            images, labels = source.fetch(picked.to(self.device))
            yield Batch(self.prepare(images), labels)

    def _indices(self, agent: int, epoch: int, batches: Sequence[int]) -> Tensor:
        """Of an epoch with batches of these sizes."""
        shard, draw, count = self.partition[agent], Draw(self.seed, agent, self.index, epoch), sum(batches)
        if self._sampler is not None:
            chosen = shard[self._sampler(draw, len(shard), count), None]
        else:
            self._draws += 1
            secret = self._secret and self._secret + self._draws.to_bytes(8, "big")
            chosen = shard[subsets(draw, len(shard), batches, secret), None]
        if self.augment != "none":
            generator = draw.generator("augment")
            corner = torch.randint(2 * PADDING + 1, (count, 2), generator=generator)
            chosen = torch.cat([chosen, corner, torch.randint(2, (count, 1), generator=generator)], 1)
        return self.train.picks(chosen, draw.generator("items"))


def about_of(index: int, task: Task, split: str, targets: Targets = "classes") -> About:
    """What is known of the items of a task before any is read."""
    name = task.name or f"task {index + 1}"
    if not isinstance(task.classes, int) or task.classes < 1:
        raise ConfigError(f"task {name!r}: classes is {task.classes!r}; it should be a whole number above 0")
    return About(name, split, task.classes, task.collate, targets)


def _type_of(inputs: Inputs) -> str:
    """Of the images; several inputs are no image."""
    return str(inputs.dtype).removeprefix("torch.") if isinstance(inputs, Tensor) else "several inputs"
