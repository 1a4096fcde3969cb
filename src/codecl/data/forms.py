"""Data as people have it -> tensors, or items that are read when they are wanted."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from codecl.data.conversion import LABELS, Collate, is_array, is_picture, split_item, tensors_of_item, why
from codecl.data.images import check_labels
from codecl.data.inputs import Batch, take, tensors_of
from codecl.data.items import TOGETHER, About, Items, generators_put_back, picks, seed_all
from codecl.errors import ConfigWarning, DataError
from codecl.registry import code_digest, reason
from codecl.seeding import spawn

Loaded = Batch | Items
Loading = Literal["auto", "memory", "stream"]
GIB = 2**30
SMALL = GIB  # bytes of a data set that `auto` reads into memory, at most
LIMIT = 4 * GIB  # bytes of one that can only be read from its beginning to its end


def loaded(data: Any, about: About, loading: Loading = "auto", workers: int = 0) -> Loaded:
    """All that a caller has, as tensors, or its items where they are to be streamed. Law: loaded again, it stays."""
    if isinstance(data, Batch | Items):
        return data
    if isinstance(data, DataLoader):
        return _of_loader(data, about, loading, workers)
    pair = _as_tensors(data, about)
    if pair is not None:
        return pair
    if _is_map_style(data):
        return _of_items(Items(data, about), loading, workers)
    if isinstance(data, Iterable):
        return _of_items(Items(_listed(data, about), about), "memory")
    raise DataError(
        f"{about} data is of type {type(data).__name__}, not (images, labels) nor a data set of such pairs; a data set"
        " has __getitem__ and __len__, or __iter__"
    )


def _is_map_style(data: Any) -> bool:
    return not isinstance(data, IterableDataset) and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _as_tensors(data: Any, about: About) -> Loaded | None:
    """Of what is a few tensors already: a pair of arrays, a TensorDataset, or a dict of columns. None: it is not."""
    if isinstance(data, TensorDataset) and about.collate is None:
        data = tuple(data.tensors)
        if len(data) != 2:
            raise DataError(f"{about} data is not (images, labels): the TensorDataset holds {len(data)} tensors")
    if isinstance(data, Mapping) and any(name in data for name in LABELS):
        data = _columns(data, about)
    is_pair = isinstance(data, tuple) or (isinstance(data, list) and all(map(is_array, data)))
    if not is_pair or len(data) != 2:
        return None
    inputs, labels = data
    if about.collate is not None or (isinstance(inputs, list) and any(is_array(v) or is_picture(v) for v in inputs)):
        if len(inputs) != len(labels):
            raise DataError(f"{about} data: {len(inputs)} images but {len(labels)} labels")
        return _of_items(Items([*zip(inputs, labels, strict=True)], about), "memory")
    try:
        if isinstance(inputs, Mapping):
            columns = {str(name): torch.as_tensor(value) for name, value in inputs.items()}
            return Batch(columns, torch.as_tensor(labels))
        if isinstance(inputs, tuple) and all(map(is_array, inputs)):
            return Batch(tuple(map(torch.as_tensor, inputs)), torch.as_tensor(labels))
        return Batch(torch.as_tensor(inputs), torch.as_tensor(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{about} data is not (images, labels) nor a data set of such pairs: {reason(error)}; sequences of"
            " different lengths need Task(…, collate=function)"
        ) from error


def _columns(data: Mapping[Any, Any], about: About) -> tuple[Any, Any]:
    try:
        return split_item(data)
    except Exception as error:
        raise DataError(f"{about} data: {why(error)}") from error


def _of_loader(loader: Any, about: About, loading: Loading, workers: int) -> Loaded:
    """A DataLoader's data set, and its collate_fn: agents deal, shuffle and batch by themselves."""
    if isinstance(loader.dataset, IterableDataset):
        batches = loader if loader.batch_size is None else _one_by_one(loader, about)
        return _of_items(Items(_listed(batches, about), about), "memory")
    plain = isinstance(loader.sampler, SequentialSampler | RandomSampler)
    if not plain or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        own = loader.batch_sampler if plain else loader.sampler
        raise DataError(
            f"{about} data: the DataLoader's {type(own).__name__} would not be used: agents draw their own batches;"
            " give its data set, or torch.utils.data.Subset of it"
        )
    return loaded(loader.dataset, about._replace(collate=about.collate or collate_of(loader)), loading, workers)


def collate_of(data: Any) -> Collate | None:
    """The function of the caller's by which a DataLoader puts items together; None: there is none."""
    if not isinstance(data, DataLoader) or data.collate_fn in (default_collate, default_convert):
        return None
    return data.collate_fn


def _of_items(items: Items, loading: Loading, workers: int = 0) -> Loaded:
    if not len(items):
        raise DataError(f"{items.about} data: there are no items")
    if loading == "memory" or (loading == "auto" and is_small(items) and is_fixed(items)):
        return items.read_all(workers)
    return items


def is_small(items: Items) -> bool:
    """Whether all items together take less than the limit of `auto`, as far as a sample tells."""
    return nbytes(items.sample) / len(items.in_sample) * len(items) < SMALL


def is_fixed(items: Items) -> bool:
    """Whether a sample is what it was when it is read again, under other seeds."""
    pairs = zip(_tensors(items.sample), _tensors(items.read_sample("again")), strict=True)
    return all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)


def _tensors(batch: Batch) -> list[Tensor]:
    return [*tensors_of(batch.images_AB), batch.labels_AB]


def nbytes(batch: Batch) -> int:
    return sum(tensor.nbytes for tensor in _tensors(batch))


def _listed(data: Iterable[Any], about: About) -> list[Any]:
    """Items that come one after another, under a fixed seed, as long as they fit."""
    items: list[Any] = []
    size = 0
    with generators_put_back():
        seed_all(0)
        try:
            for item in data:
                items.append(item)
                size += sum(_size(leaf) for leaf in tree_leaves(item))
                if size > LIMIT:
                    break
        except Exception as error:  # a user's data set may raise anything
            raise DataError(f"{about} item {len(items)}: {reason(error)}") from error
    if size > LIMIT:
        raise DataError(
            f"{about} data: a {type(data).__name__} is read into memory, and this one is more than {LIMIT // GIB} GiB;"
            " give a data set with __getitem__ and __len__, which can be streamed"
        )
    return items


def _size(value: Any) -> int:
    """Bytes of a tensor, an array, a picture or a number."""
    if hasattr(value, "width") and hasattr(value, "height"):
        return int(value.width * value.height * len(value.getbands()))
    return int(getattr(value, "nbytes", 8))


def _one_by_one(batches: Iterable[Any], about: About) -> Iterator[Any]:
    """The items of batches, as pairs."""
    for batch in batches:
        try:
            inputs, labels = tensors_of_item(batch)
        except Exception as error:
            raise DataError(f"{about} data: a batch of the DataLoader: {why(error)}") from error
        yield from ((take(inputs, row), label) for row, label in enumerate(labels))


def labels_of(items: Items, workers: int) -> Tensor:
    """All labels: those that the data set has as a whole, if they are its items'; else every item is read."""
    found, known = _whole(items.data), items.sample.labels_AB
    if found is not None and len(found) == len(items) and torch.equal(found[items.in_sample].to(known.dtype), known):
        return check_labels(str(items.about), found, items.about.classes)
    warnings.warn(
        f"{items.about} labels: all {len(items)} items are read for them once; a data set with `targets` spares that",
        ConfigWarning,
        stacklevel=2,
    )
    chosen = picks(torch.arange(len(items))[:, None], spawn(0, "items"))
    return torch.cat([batch.labels_AB for batch in items.batches(chosen.split(TOGETHER), workers)])


def _whole(data: Any) -> Tensor | None:
    """The labels of a data set where it has them in one piece: `targets`, `labels`, or a column of such a name."""
    if isinstance(data, Subset):
        whole = _whole(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    columns = getattr(data, "column_names", None)
    for name in ("targets", *LABELS):
        found = data[name] if isinstance(columns, list) and name in columns else getattr(data, name, None)
        try:
            labels = None if found is None else torch.as_tensor(np.asarray(found))
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels is not None and labels.ndim == 1 and not labels.is_complex():
            return labels
    return None


def code_of(items: Items) -> str:
    """What computes the items: the code of the data set's class, of those inside it, and of the caller's collate."""
    parts, data = [], items.data
    for _ in range(10):
        kind = type(data)
        known = kind.__module__.partition(".")[0] in ("torch", "builtins")
        parts.append(kind.__qualname__ if known else f"{kind.__qualname__} {code_digest(kind)}")
        if isinstance(data, Subset):
            parts.append(hashlib.sha256(np.asarray(data.indices, np.int64).tobytes()).hexdigest())
        data = getattr(data, "dataset", None)
        if data is None:
            break
    collate = items.about.collate
    if collate is not None:
        parts.append(code_digest(collate if hasattr(collate, "__code__") else type(collate)))
    return f"{len(items)} {' '.join(parts)}"
