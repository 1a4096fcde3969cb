"""Data set -> ordered tasks -> a shard for each agent -> batches.

Shapes: A agents of this process, B images of a batch, S steps of an epoch, K numbers that pick an image: which one, and
where it is varied also the crop's corner (2) and whether it is mirrored.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from codecl.data import crops
from codecl.data import partition as partitions
from codecl.data.images import Images, check_classes, checked, prepared, scale_of
from codecl.errors import ConfigError, DataError
from codecl.registry import reason
from codecl.seeding import spawn

Augment = Literal["none", "crop-flip"]
CropFill = Literal["black", "mean"]
Sampling = Literal["shuffle", "replacement"]
Mean = Annotated[float, Field(allow_inf_nan=False)]
Std = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field("quickstart", description="a named stream of tasks, file.py:function, or the caller's own")
    tasks: int | None = Field(None, gt=0, description="so many tasks of the stream, from the first on; null: all")
    partition: str = Field("iid", description="how a task's images are dealt to agents: iid, dirichlet(α) or skew(s)")
    augment: Augment = Field(
        "none", description="crop-flip: a crop of the image padded by 4, mirrored or not; an own draw for every image"
    )
    crop_fill: CropFill = Field(
        "black", description="what a crop shows past the image's edge: black, or mean, the colour that scaling makes 0"
    )
    validation: float = Field(
        0, ge=0, lt=1, description="part of the training images that is held out and scored instead of the test images"
    )
    digest: str | None = Field(None, description="of the caller's own tensors, one a task")
    mean: tuple[Mean, ...] = Field(
        (), description="by channel, of values from 0 to 1; empty: the stream's, or measured"
    )
    std: tuple[Std, ...] = Field((), validate_default=True, description="by channel, as many as data.mean has")
    steps_per_epoch: int | None = Field(
        None,
        gt=0,
        description="steps of an epoch, the same for every agent; null: as many full batches as the smallest shard has",
    )
    sampling: Sampling = Field(
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
    """One task: images with labels 0 .. classes - 1.

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


class TaskData:
    """A task on the device, dealt to agents."""

    def __init__(
        self,
        index: int,
        task: Task,
        agents: int,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        config: DataConfig | None = None,
    ) -> None:
        config = config or DataConfig()
        self.index, self.name, self.classes = index, task.name or f"task {index + 1}", task.classes
        if not isinstance(task.classes, int) or task.classes < 1:
            raise ConfigError(f"task {self.name!r}: classes is {task.classes!r}; it should be a whole number above 0")
        if config.validation:
            part = checked(self.name, "training", tensors(task.train), task.classes, torch.device("cpu"))
            task = validating(task._replace(train=part, name=self.name), config.validation, seed, index)
        self.task, self.agents, self.seed, self.dtype, self.augment = task, agents, seed, dtype, config.augment
        self._steps, self._sampling = config.steps_per_epoch, config.sampling
        self.train = checked(self.name, "training", tensors(task.train), task.classes, device)
        self.test = checked(self.name, "test", tensors(task.test), task.classes, device)
        if task.labels and len(task.labels) != task.classes:
            raise ConfigError(f"task {self.name!r}: {len(task.labels)} labels for {task.classes} classes")
        if self.train[0].shape[1:] != self.test[0].shape[1:]:
            shapes = [list(part[0].shape[1:]) for part in (self.train, self.test)]
            raise DataError(f"task {self.name!r}: training images are {shapes[0]}, test images {shapes[1]}")
        self.scale = scale_of(self.name, (task.mean, task.std), self.train[0], dtype)
        self.partition = self._own() if config.local_path else self._dealt(config.partition)
        if self.augment != "none":
            colour = crops.seen_as_0(self.train[0], self.scale) if config.crop_fill == "mean" else None
            self._windows = crops.windows(self.name, self.train[0], colour)

    def _dealt(self, how: str) -> partitions.Partition:
        """A shard of the common images for each agent."""
        images = len(self.train[1])
        check_classes(self.name, self.train[1], self.classes)
        if images < self.agents:
            raise ConfigError(f"agents: {self.agents} is more than the {images} training images of task {self.name!r}")
        return partitions.partition(how, self.train[1], self.agents, self.seed, self.index)

    def _own(self) -> partitions.Partition:
        """All images, whichever number the one agent here has: the others' are elsewhere. It may lack classes."""
        return (torch.arange(len(self.train[1])),) * self.agents

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

    def steps(self, batch: int) -> int:
        """Steps of an epoch, the same for every agent: as the config says, or ⌊shard / batch⌋."""
        if self._steps is not None:
            return self._steps
        shard = min(map(len, self.partition))
        if batch > shard:
            raise ConfigError(
                f"train.batch_size: {batch} is more than the {shard} images that an agent has of task {self.name!r};"
                f" use a batch of at most {shard}, fewer agents or data.steps_per_epoch"
            )
        return shard // batch

    def indices(self, epoch: int, agents: Sequence[int], batch: int) -> Tensor:
        """[S, A, B, K] on the CPU: the images of each step, full batches of a fresh shuffle of each agent's shard;
        where it is too small, of one shuffle after another. Or draws with replacement."""
        steps = self.steps(batch)
        rows = [self._indices(agent, epoch, steps * batch).view(steps, batch, -1) for agent in agents]
        return torch.stack(rows, 1)

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
        for indices_ABK in self.indices(epoch, agents, batch).to(self.train[1].device):
            yield self.batch(indices_ABK)

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

    def held_out(self) -> Images:
        """The test images, prepared, in an order of their own (norms see batches of mixed classes)."""
        images, labels = self.test
        order = torch.randperm(len(labels), generator=spawn(self.seed, "test", self.index)).to(labels.device)
        return self.prepare(images[order]), labels[order]

    def prepare(self, images: Tensor) -> Tensor:
        """Stored images -> what the model sees."""
        return prepared(images, self.scale, self.dtype)

    def _indices(self, agent: int, epoch: int, count: int) -> Tensor:
        shard, path = self.partition[agent], (agent, self.index, epoch)
        which = shard[self._order(len(shard), count, spawn(self.seed, "shuffle", *path)), None]
        if self.augment == "none":
            return which
        generator = spawn(self.seed, "augment", *path)
        corner = torch.randint(2 * crops.PADDING + 1, (count, 2), generator=generator)
        return torch.cat([which, corner, torch.randint(2, (count, 1), generator=generator)], 1)

    def _order(self, images: int, count: int, generator: torch.Generator) -> Tensor:
        """Which of so many images come, one after another."""
        if self._sampling == "replacement":
            return torch.randint(images, (count,), generator=generator)
        rounds = max(1, -(-count // images))
        return torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])[:count]


def in_batches(rows: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Rows in batches. A last batch of one joins the one before it: norms need more than one image."""
    batches = max(1, len(rows) // batch + (len(rows) % batch > 1))
    return rows.tensor_split([number * batch for number in range(1, batches)])


def validating(task: Task, part: float, seed: int, index: int) -> Task:
    """The task with a part of its training images, of each class alike, in the place of its test images: for choosing
    settings. The cut depends on the seed alone."""
    images, labels = tensors(task.train)
    order = torch.randperm(len(labels), generator=spawn(seed, "validation", index))
    held, kept = [], []
    for kind in labels.unique():
        of_it = order[labels[order] == kind]
        count = max(1, round(part * len(of_it)))
        if count >= len(of_it):
            raise ConfigError(
                f"data.validation: {part:g} leaves no training images of class {int(kind)} of task {task.name!r}"
            )
        held.append(of_it[:count])
        kept.append(of_it[count:])
    cut, rest = torch.cat(held), torch.cat(kept)
    return task._replace(train=(images[rest], labels[rest]), test=(images[cut], labels[cut]))


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
