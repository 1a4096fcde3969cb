"""Data set -> ordered tasks -> a shard for each agent -> batches.

Shapes: A agents of this process, B images of a batch, S steps of an epoch, K numbers that pick an image: which one, and
where it is varied also the crop's corner (2) and whether it is mirrored.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationInfo, field_validator
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from codecl.data import partition as partitions
from codecl.data.images import PADDING, Images, checked, prepared, scale_of, seen_as_0, windows
from codecl.data.partition import SAMPLERS, Draw, Partition, Sampler
from codecl.data.targets import Targets, are_classes
from codecl.errors import ConfigError, DataError
from codecl.registry import reason
from codecl.seeding import spawn

Std = Annotated[FiniteFloat, Field(gt=0)]


class DataConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field("quickstart", description="a named stream of tasks, file.py:function, or the caller's own")
    tasks: int | None = Field(None, gt=0, description="so many tasks of the stream, from the first on; null: all")
    partition: str = Field(
        "iid", description="how a task's images are dealt to agents: iid, dirichlet(α), skew(s) or shards(k)"
    )
    augment: Literal["none", "crop-flip"] = Field(
        "none", description="crop-flip: a crop of the image padded by 4, mirrored or not; an own draw for every image"
    )
    crop_fill: Literal["black", "mean"] = Field(
        "black", description="what a crop shows past the image's edge: black, or mean, the colour that scaling makes 0"
    )
    validation: float = Field(
        0, ge=0, lt=1, description="part of the training images that is held out and scored instead of the test images"
    )
    held_out: float = Field(
        0,
        ge=0,
        lt=1,
        description="part of an agent's training images that it measures its loss on, for a schedule",
    )
    digest: str | None = Field(None, description="of the caller's own tensors, one a task")
    mean: tuple[FiniteFloat, ...] = Field(
        (), description="by channel, of values from 0 to 1; empty: the stream's, or measured"
    )
    std: tuple[Std, ...] = Field((), validate_default=True, description="by channel, as many as data.mean has")
    steps_per_epoch: int | None = Field(
        None,
        gt=0,
        description="steps of an epoch, the same for every agent; null: as many full batches as the smallest shard has",
    )
    drop_last: bool = Field(
        True, description="an epoch's last batch, where the smallest shard leaves a smaller one, is left out"
    )
    sampling: Literal["shuffle", "replacement"] = Field(
        "shuffle",
        description="an epoch's images: a fresh shuffle of the shard, or draws with replacement, as analyses assume",
    )
    local_path: str | None = Field(
        None,
        description="a data set file, or a folder of data set files, of this agent alone; needs"
        " data.steps_per_epoch, and mean, std and classes that are stated: measured ones would tell of the images, and"
        " differ between agents",
    )

    @field_validator("partition")
    @classmethod
    def _known(cls, value: str) -> str:
        partitions.parse(value)
        return value

    @field_validator("std")
    @classmethod
    def _both(cls, value: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        if len(value) != len(info.data.get("mean", value)):
            raise ValueError("data.mean and data.std should have as many numbers, one a channel")
        return value

    @field_validator("local_path")
    @classmethod
    def _counted(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("steps_per_epoch", 1) is None:
            raise ValueError(
                "agents do not know each other's number of images; say how many steps: data.steps_per_epoch=50"
            )
        return value


class Task(NamedTuple):
    """One task: images with labels 0 .. classes - 1; or, for another loss than cross-entropy, with numbers [n] or
    [n, k], and then `classes` is the number of outputs.

    Images are uint8 (scaled to 0 .. 1), floating (taken as they are) or other integers (tokens: not touched)."""

    train: Images | Dataset[Any]
    test: Images | Dataset[Any]
    classes: int
    name: str = ""
    mean: tuple[float, ...] = ()  # by channel, after scaling; empty: leave as is
    std: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()  # what the classes are called
    original: tuple[int, ...] = ()  # the shape of an image as its data set has it, where the task's is another


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


class Batch(NamedTuple):
    images_AB: Tensor
    labels_AB: Tensor


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
        config, name, classes = options.config, task.name or f"task {index + 1}", task.classes
        if not isinstance(classes, int) or classes < 1:
            raise ConfigError(f"task {name!r}: classes is {classes!r}; it should be a whole number above 0")
        train = checked(name, "training", tensors(task.train), classes, options.targets)
        self.has_classes = are_classes(train[1], classes, options.targets)
        if config.validation:
            kinds = train[1] if self.has_classes else torch.zeros(len(train[1]), dtype=torch.long)
            cut = partitions.validation(name, kinds, config.validation, options.seed, index)
            train, test = ((train[0][indices], train[1][indices]) for indices in cut)
        else:
            test = checked(name, "test", tensors(task.test), classes, options.targets)
        if task.labels and len(task.labels) != classes:
            raise ConfigError(f"task {name!r}: {len(task.labels)} labels for {classes} classes")
        self.index, self.name, self.classes = index, name, classes
        self._uneven = config.partition != "iid" and not config.local_path
        self.agents, self.seed = options.agents, options.seed
        self.dtype, self.augment = options.dtype, config.augment
        self.task = task._replace(train=train, test=test)
        device = options.device
        self.train, self.test = ((images.to(device), self._target(labels, device)) for images, labels in (train, test))
        shapes = [list(images.shape[1:]) for images, _ in (train, test)]
        if shapes[0] != shapes[1]:
            raise DataError(f"task {name!r}: training images are {shapes[0]}, test images {shapes[1]}")
        self.scale = scale_of(name, (task.mean, task.std), self.train[0], options.dtype)
        dealt = options.partition if options.partition is not None else self._partition(options)
        cuts = [self._cut(agent, shard, config.held_out) for agent, shard in enumerate(dealt)]
        self.partition, self._held_out = [shard for shard, _ in cuts], [held_out for _, held_out in cuts]
        self._sampler = options.sampler or SAMPLERS[config.sampling]
        self._steps, self._drop_last = config.steps_per_epoch, config.drop_last
        if self.augment != "none":
            colour = seen_as_0(self.train[0], self.scale) if config.crop_fill == "mean" else None
            self._windows = windows(name, self.train[0], colour)

    def _partition(self, options: TaskOptions) -> Partition:
        """A shard of the common images for each agent. Of data of its own, which may lack classes, the one agent here
        has all, whichever number it has."""
        labels, agents = self.train[1], options.agents
        if options.config.local_path:
            return (torch.arange(len(labels)),) * agents
        if not self.has_classes and options.config.partition != "iid":
            raise ConfigError(
                f"data.partition: {options.config.partition} deals images by their class, and labels of task"
                f" {self.name!r} are no classes; use iid"
            )
        if options.targets == "classes":
            self._check_all_classes(labels)
        if len(labels) < agents:
            raise ConfigError(f"agents: {agents} is more than the {len(labels)} training images of task {self.name!r}")
        return partitions.partition(options.config.partition, labels, agents, self.seed, self.index)

    def _check_all_classes(self, labels: Tensor) -> None:
        empty = (torch.bincount(labels, minlength=self.classes) == 0).nonzero().flatten().tolist()
        if empty:
            raise DataError(f"task {self.name!r}: class {empty[0]} has no training images")

    def _target(self, labels: Tensor, device: torch.device) -> Tensor:
        """Labels on the device; numbers in the run's type."""
        return labels.to(device, self.dtype) if labels.is_floating_point() else labels.to(device)

    def _cut(self, agent: int, shard: Tensor, part: float) -> tuple[Tensor, Tensor]:
        """An agent's images: those that it trains on, and those that it holds out."""
        if not part:
            return shard, shard[:0]
        order = torch.randperm(len(shard), generator=spawn(self.seed, "held out", agent, self.index))
        count = max(1, round(part * len(shard)))
        return shard[order[count:]], shard[order[:count]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return tuple(self.train[0].shape[1:])

    def describe(self) -> TaskInfo:
        return TaskInfo(
            name=self.name,
            classes=self.classes,
            labels=self.task.labels,
            shape=self.shape,
            original=self.task.original or self.shape,
            stored=str(self.train[0].dtype).removeprefix("torch."),
            mean=self.task.mean,
            std=self.task.std,
        )

    def class_counts(self) -> dict[str, list[int]] | None:
        """For each class, how many training images each agent has of it. None where they are dealt iid, and where an
        agent has images of its own, which no other knows."""
        if not self._uneven:
            return None
        names = self.task.labels
        if len({*names}) < self.classes:  # none, or two that are called the same
            names = tuple(map(str, range(self.classes)))
        return dict(zip(names, self.images_of_classes().mT.tolist(), strict=True))

    def images_of_classes(self) -> Tensor:
        """How many training images of each class an agent has [A, C]."""
        labels = self.train[1].cpu()
        return torch.stack([labels[shard].bincount(minlength=self.classes) for shard in self.partition])

    def steps(self, batch: int) -> int:
        """Steps of an epoch, the same for every agent: as the config says, or ⌊shard / batch⌋ and the last."""
        return self._full(batch) + (self._last(batch) > 0)

    def _full(self, batch: int) -> int:
        """Full batches of an epoch."""
        if self._steps is not None:
            return self._steps
        shard = min(map(len, self.partition))
        if batch > shard:
            raise ConfigError(
                f"train.batch_size: {batch} is more than the {shard} images that an agent has of task {self.name!r};"
                f" use a batch of at most {shard}, fewer agents or data.steps_per_epoch"
            )
        return shard // batch

    def _last(self, batch: int) -> int:
        """Images of an epoch's last, smaller batch, the same for every agent; a single one is left out: norms need
        more."""
        if self._drop_last or self._steps is not None:
            return 0
        left = min(map(len, self.partition)) % batch
        return left if left > 1 else 0

    def indices(self, epoch: int, agents: Sequence[int], batch: int) -> list[Tensor]:
        """The images of each step, as the sampler draws them from each agent's shard, on the CPU: the full batches
        [S, A, B, K], then the last one [1, A, b, K] where it is smaller and not left out."""
        full, last = self._full(batch), self._last(batch)
        rows_AIK = torch.stack([self._indices(agent, epoch, full * batch + last) for agent in agents])
        parts = rows_AIK.split([full * batch, last], 1)
        sizes = [(full, batch), (1, last)] if last else [(full, batch)]
        by_step = (part.unflatten(1, size).transpose(0, 1) for part, size in zip(parts, sizes, strict=False))
        return [part_SABK.contiguous() for part_SABK in by_step]

    def batch(self, indices_ABK: Tensor) -> Batch:
        """These images, prepared, on the device: nothing here waits for it."""
        images, labels = self.train
        which_AB = indices_ABK[..., 0]
        if self.augment == "none":
            return Batch(self.prepare(images[which_AB]), labels[which_AB])
        which_AB, down_AB, right_AB, mirrored_AB = indices_ABK.unbind(-1)
        cut_AB = self._windows[which_AB, :, down_AB, right_AB]
        mirrored = mirrored_AB.bool()[..., None, None, None]
        return Batch(self.prepare(torch.where(mirrored, cut_AB.flip(-1), cut_AB)), labels[which_AB])

    def epoch(self, epoch: int, agents: Sequence[int], batch: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        for indices_SABK in self.indices(epoch, agents, batch):
            yield from map(self.batch, indices_SABK.to(self.train[1].device))

    def sample(self, agent: int, images: int) -> Tensor:
        """Some images of an agent's shard, for growth."""
        order = torch.randperm(len(self.partition[agent]), generator=spawn(self.seed, "growth", agent, self.index))
        return self.prepare(self.train[0][self.partition[agent][order[:images]].to(self.train[0].device)])

    def of_agent(self, agent: int, batch: int) -> Iterator[Tensor]:
        """All images of an agent's shard, prepared but not varied, in batches of mixed classes."""
        shard = self.partition[agent]
        order = shard[torch.randperm(len(shard), generator=spawn(self.seed, "norms", agent, self.index))]
        for which in in_batches(order.to(self.train[0].device), batch):
            yield self.prepare(self.train[0][which])

    def held_out(self, agent: int) -> Images:
        """The images of an agent's shard that it does not train on, prepared."""
        which = self._held_out[agent].to(self.train[1].device)
        return self.prepare(self.train[0][which]), self.train[1][which]

    def test_images(self) -> Images:
        """The test images, prepared, in an order of their own (norms see batches of mixed classes)."""
        images, labels = self.test
        order = torch.randperm(len(labels), generator=spawn(self.seed, "test", self.index)).to(labels.device)
        return self.prepare(images[order]), labels[order]

    def prepare(self, images: Tensor) -> Tensor:
        """Stored images -> what the model sees."""
        return prepared(images, self.scale, self.dtype)

    def _indices(self, agent: int, epoch: int, count: int) -> Tensor:
        shard, draw = self.partition[agent], Draw(self.seed, agent, self.index, epoch)
        which = shard[self._sampler(draw, len(shard), count), None]
        if self.augment == "none":
            return which
        generator = draw.generator("augment")
        corner = torch.randint(2 * PADDING + 1, (count, 2), generator=generator)
        return torch.cat([which, corner, torch.randint(2, (count, 1), generator=generator)], 1)


def in_batches(rows: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Rows in batches. A last batch of one joins the one before it: norms need more than one image."""
    batches = max(1, len(rows) // batch + (len(rows) % batch > 1))
    return rows.tensor_split([number * batch for number in range(1, batches)])


def tensors(source: Images | Dataset[Any]) -> Images:
    """(images, labels) of a pair of tensors or of any data set."""
    try:
        if isinstance(source, TensorDataset):
            source = (source.tensors[0], source.tensors[1])
        if isinstance(source, tuple | list):
            images, labels = source
            return torch.as_tensor(images), torch.as_tensor(labels)
        many: Any = source
        items = list(many) if isinstance(source, IterableDataset) else [many[i] for i in range(len(many))]
        columns = ([torch.as_tensor(item[part]) for item in items] for part in (0, 1))
        images, labels = map(torch.stack, columns)
        return images, labels
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise DataError(
            f"a task's data is not (images, labels) nor a data set of such pairs: {reason(error)}"
        ) from error
