"""Where the items of a split are: all of them in memory on the device, or read anew whenever they are wanted.

Both pick items by numbers [..., K]: which one; where images are varied, the crop's corner (2) and whether it is
mirrored; where items are streamed, last the seed of what an item draws. Shapes: S steps, A agents, B items of a batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl.data import forms
from codecl.data.images import checked, flipped, windows
from codecl.data.inputs import Batch, Inputs, take, tensors_of, to
from codecl.data.items import About, Items, Reader
from codecl.data.items import picks as with_seeds
from codecl.seeding import spawn

Picked = Tensor | Batch  # items by their numbers, or such that were read ahead


class InMemory(NamedTuple):
    """All items on the device."""

    inputs: Inputs
    labels: Tensor
    windows: Tensor | None = None  # every crop of every image

    @property
    def streamed(self) -> bool:
        return False

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in tensors_of(self.inputs))

    def to(self, device: torch.device) -> "InMemory":
        return InMemory(to(self.inputs, device), self.labels.to(device))

    def subset(self, which: Tensor) -> "InMemory":
        return InMemory(take(self.inputs, which), self.labels[which])

    def cropping(self, task: str, colour: Tensor | None) -> "InMemory":
        """Itself, ready to give crops: past an image's edge they show this colour, or black."""
        return self._replace(windows=windows(task, self.inputs, colour))

    def all_labels(self) -> Tensor:
        return self.labels.cpu()

    def first(self, many: int) -> Inputs:
        """So many items; from the first on again where there are fewer."""
        return take(self.inputs, torch.arange(many, device=self.device) % self.size)

    def picks(self, chosen_NK: Tensor, _: torch.Generator) -> Tensor:
        return chosen_NK

    def read_ahead(self, picks: Iterable[Tensor]) -> Iterable[Picked]:
        return picks

    @contextmanager
    def reading(self) -> Iterator[None]:
        yield

    def fetch(self, picked: Picked) -> Batch:
        """These items as they are stored. Nothing here waits for the device."""
        assert isinstance(picked, Tensor)
        if picked.shape[-1] == 1:
            which = picked[..., 0]
            return Batch(take(self.inputs, which), self.labels[which])
        assert self.windows is not None
        which, down, right, mirrored = picked.unbind(-1)
        return Batch(flipped(self.windows[which, :, down, right], mirrored), self.labels[which])


class Streamed:
    """Items that are read anew whenever they are wanted, on this many worker processes (0: in this one).

    Law: gives what `InMemory` gives where an item is the same whenever it is read."""

    streamed, nbytes = True, 0

    def __init__(self, items: Items, workers: int) -> None:
        self.items, self.workers, self.device = items, workers, torch.device("cpu")
        self._which: Tensor | None = None  # of the items these are; None: all
        self._labels: Tensor | None = None  # where they were read
        self._reader: Reader | None = None

    @property
    def size(self) -> int:
        return len(self.items) if self._which is None else len(self._which)

    def to(self, device: torch.device) -> "Streamed":
        moved = copy(self)
        moved.device = device
        return moved

    def subset(self, which: Tensor) -> "Streamed":
        part = copy(self)
        part._which = which if self._which is None else self._which[which]
        part._labels = None if self._labels is None else self._labels[which]
        return part

    def cropping(self, task: str, colour: Tensor | None) -> "Streamed":
        windows(task, self.first(1), None)  # refuses what is no image
        part = copy(self)
        part.items = self.items.cropping(colour)
        return part

    def all_labels(self) -> Tensor:
        if self._labels is None:
            labels = forms.labels_of(self.items, self.workers)
            self._labels = labels if self._which is None else labels[self._which]
        return self._labels

    def first(self, many: int) -> Inputs:
        which = torch.arange(many) % self.size
        return self.fetch(self.picks(which[:, None], spawn(0, "items"))).images_AB

    def picks(self, chosen_NK: Tensor, generator: torch.Generator) -> Tensor:
        """These items, each with a seed for what it draws."""
        return with_seeds(chosen_NK, generator)

    def read_ahead(self, picks: Iterable[Tensor]) -> Iterable[Picked]:
        """What `fetch` takes, in this order, read while the device works."""
        reader = self._reader or self._new_reader(self.workers)
        return reader.batches([self._underlying(part) for part in picks])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """In here worker processes stay from one epoch to the next."""
        self._reader = self._new_reader(self.workers)
        try:
            yield
        finally:
            self._reader = None

    def fetch(self, picked: Picked) -> Batch:
        """These items as they are stored, on the device."""
        if isinstance(picked, Tensor):
            (picked,) = self._new_reader(0).batches([self._underlying(picked.cpu())])
        return picked.to(self.device)

    def _new_reader(self, workers: int) -> Reader:
        return Reader(self.items, workers, pin=self.device.type == "cuda")

    def _underlying(self, picks: Tensor) -> Tensor:
        if self._which is None:
            return picks
        return torch.cat([self._which[picks[..., :1]], picks[..., 1:]], -1)


Source = InMemory | Streamed


def source_of(data: Any, about: About, loading: forms.Loading = "auto", workers: int = 0) -> Source:
    """The items of what a caller has, checked: tensors at once, streamed ones as they are read."""
    found = forms.loaded(data, about, loading, workers)
    if isinstance(found, Items):
        return Streamed(found, workers)
    return InMemory(*checked(about.task, about.split, found, about.classes))
