"""The items of a user's data set: read one by one, each under a seed of its own, and put together as tensors.

Shapes: N items that are read together, K numbers that pick an item: which one, and last the seed of what it draws.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from codecl.data.conversion import Collate, Form, collated, tensors_of_item, why
from codecl.data.images import check_labels, cropped
from codecl.data.inputs import Batch, Inputs, each, joined, stacked, tensors_of
from codecl.data.targets import Targets
from codecl.errors import DataError
from codecl.registry import import_files, own_files, reason
from codecl.seeding import spawn

SAMPLE = 32  # items that are looked at before all others
TOGETHER = 256  # items that are read in one go where all are read


class About(NamedTuple):
    """Whose items these are, for errors, and what they should be."""

    task: str
    split: str
    classes: int
    collate: Collate | None = None
    targets: Targets = "classes"  # what the loss takes

    def __str__(self) -> str:
        return f"task {self.task!r}: {self.split}"


class Bad(NamedTuple):
    """An item that cannot be used, as a worker process says it: an error would arrive with a traceback in its text."""

    reason: str


class Items(Dataset[Any]):
    """A map-style data set. `Items[picks]` are the items that picks [..., K] choose, as a batch of that shape.

    Law: a pick gives the same item in every process: its seed is that of PyTorch, NumPy and Python while it is read."""

    def __init__(self, data: Any, about: About, crop_colour: Tensor | None = None) -> None:
        self.data, self.about, self.crop_colour = data, about, crop_colour
        self._first: tuple[int, Form] | None = None  # an item that was read: the others should be like it

    def __getstate__(self) -> Any:
        """For a worker that is not forked: it imports the caller's files before it reads what is of their classes."""
        return _OwnFiles(), self.__dict__

    def __setstate__(self, state: tuple[Any, dict[str, Any]]) -> None:
        self.__dict__.update(state[1])

    def __len__(self) -> int:
        return len(self.data)

    def cropping(self, colour: Tensor | None) -> "Items":
        """Itself, giving crops that show this colour past an image's edge, or black."""
        return Items(self.data, self.about, None if colour is None else colour.cpu())

    @cached_property
    def sample(self) -> Batch:
        """Some items from the first to the last, under fixed seeds."""
        return self.read_sample("sample")

    def read_sample(self, purpose: str) -> Batch:
        """The sample under the seeds of this purpose."""
        return next(self.batches([picks(self.in_sample[:, None], spawn(0, purpose))]))

    @property
    def in_sample(self) -> Tensor:
        """Which items it has."""
        many = min(SAMPLE, len(self))
        return torch.arange(many) * len(self) // many

    def batches(self, picks: Iterable[Tensor], workers: int = 0, pin: bool = False) -> Iterator[Batch]:
        """One batch after another; so many worker processes read ahead."""
        yield from Reader(self, workers, pin).batches(picks)

    def read_all(self, workers: int = 0) -> Batch:
        """Everything, under fixed seeds."""
        chosen = picks(torch.arange(len(self))[:, None], spawn(0, "items"))
        if self.about.collate is not None:  # it decides what items become beside each other
            return next(self.batches([chosen]))
        parts = list(self.batches(chosen.split(TOGETHER), workers))
        return Batch(joined([part.images_AB for part in parts]), torch.cat([part.labels_AB for part in parts]))

    def __getitem__(self, picks: Any) -> Batch | Bad:
        try:
            return self._read(np.asarray(picks))
        except DataError as error:
            return Bad(str(error))

    def _read(self, picks: Any) -> Batch:
        shape, rows = picks.shape[:-1], picks.reshape(-1, picks.shape[-1])
        which = rows[:, 0].tolist()
        with generators_put_back():
            items = [self._item(index, seed) for index, seed in zip(which, rows[:, -1].tolist(), strict=True)]
            inputs, labels = self._together(items, which)
        for tensor in tensors_of(inputs):
            self._check_finite(tensor, which)
        labels = check_labels(str(self.about), labels, self.about.classes, self.about.targets, which)
        if rows.shape[1] > 2:
            inputs = cropped(self.about.task, inputs, torch.from_numpy(rows[:, 1:-1]), self.crop_colour)
        return Batch(each(lambda tensor: tensor.unflatten(0, shape), inputs), labels.unflatten(0, shape))

    def _item(self, index: int, seed: int) -> Any:
        seed_all(seed)
        try:
            item = self.data[index]
            return item if self.about.collate else tensors_of_item(item)
        except Exception as error:  # a user's data set may raise anything
            raise DataError(f"{self.about} item {index}: {why(error)}") from error

    def _together(self, items: list[Any], which: Sequence[int]) -> tuple[Inputs, Tensor]:
        if self.about.collate is not None:
            return collated(str(self.about), self.about.collate, items)
        self._first = first, form = self._first or (which[0], Form.of(items[0]))
        for index, item in zip(which, items, strict=True):
            if Form.of(item) != form:
                raise DataError(
                    f"{self.about} item {index}: it is {Form.of(item)}, but item {first} is {form}; make them alike, or"
                    " pad them with Task(…, collate=function)"
                )
        inputs = stacked([inputs for inputs, _ in items])
        return inputs, torch.stack([label for _, label in items])

    def _check_finite(self, tensor: Tensor, which: Sequence[int]) -> None:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            finite = tensor.isfinite().reshape(len(tensor), -1).all(1)
            raise DataError(f"{self.about} item {which[int((~finite).nonzero()[0])]}: it holds NaN or infinity")


class _OwnFiles:
    """What is read after it may be of a class in one of the users' files that this process has imported."""

    def __reduce__(self) -> Any:
        return import_files, (own_files(),)


class Reader:
    """Reads batches of items in the order of their picks; worker processes stay from one pass to the next."""

    def __init__(self, items: Items, workers: int, pin: bool = False) -> None:
        self._sampler: list[Any] = []
        self._loader: DataLoader[Any] = DataLoader(
            items,
            batch_size=None,
            sampler=self._sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            persistent_workers=workers > 0,
            pin_memory=pin,
            generator=torch.Generator(),  # the loader draws a seed for its workers: not from the caller's generator
        )

    def batches(self, picks: Iterable[Tensor]) -> Iterator[Batch]:
        self._sampler[:] = [part.numpy() for part in picks]
        read = iter(self._loader)
        while True:
            try:
                batch = next(read)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:  # a worker was killed, or has no shared memory left
                if not self._loader.num_workers:
                    raise
                how = reason(_stopped(read, error))
                raise DataError(f"data.workers: a process that reads items failed: {how}") from error
            if isinstance(batch, Bad):
                raise DataError(batch.reason)
            yield batch


def _stopped(read: Any, error: Exception) -> Exception:
    """Why a worker failed, when all are stopped. Its end shows twice: a broken connection, then a signal that says how
    it ended."""
    try:
        time.sleep(0.2)
    except RuntimeError as by_signal:
        error = by_signal
    read._shutdown_workers()
    return error


def _as_it_is(batch: Any) -> Any:
    return batch


def picks(chosen_NK: Tensor, generator: torch.Generator) -> Tensor:
    """These, each with a seed of its own behind it."""
    return torch.cat([chosen_NK, torch.randint(2**63 - 1, (len(chosen_NK), 1), generator=generator)], 1)


def seed_all(seed: int) -> None:
    """The generators that a data set may draw from; a GPU's are left alone."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def generators_put_back() -> Iterator[None]:
    """PyTorch's, Python's and NumPy's global generators go on afterwards as if nothing had been drawn."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
