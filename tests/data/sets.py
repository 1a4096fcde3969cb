"""Data sets as people write them. At the top of a module: worker processes may have to import them."""

import random

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset

CLASSES = 3


def values(index):
    """Of item `index`: a low-dimensional image that tells its class."""
    generator = torch.Generator().manual_seed(index % CLASSES)
    return torch.randn(2, 6, 6, generator=generator) + 0.01 * index


class Pairs(Dataset):
    """(image, label), the same whenever an item is read."""

    def __init__(self, size=48, first=0):
        self.size, self.first, self.reads = size, first, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.reads.append(index)
        return values(self.first + index), (self.first + index) % CLASSES


class Noisy(Pairs):
    """A random augmentation, from the three generators that people use."""

    def __init__(self, size=48):
        super().__init__(size)
        self.seen = []

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        drawn = random.random(), float(np.random.rand()), torch.rand(()).item()
        self.seen.append((index, drawn))
        return image + sum(drawn), label


class Dicts(Pairs):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return {"pixel_values": image, "label": label}


class Odd(Pairs):
    """Numbers as NumPy has them."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image.numpy(), np.int32(label)


class Labelled(Pairs):
    """With all labels in one piece."""

    def __init__(self, size=48, targets=None):
        super().__init__(size)
        self.targets = [index % CLASSES for index in range(size)] if targets is None else targets


class Columns:
    """As data sets of the hub are: items are dicts, a name gives a column."""

    column_names = ["image", "label"]  # noqa: RUF012

    def __init__(self, size=48):
        self.items, self.reads = Pairs(size), []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, key):
        if key == "label":
            return [index % CLASSES for index in range(len(self))]
        self.reads.append(key)
        return dict(zip(("image", "labels"), self.items[key], strict=True))


class OneByOne(IterableDataset):
    def __init__(self, size=48, several=False):
        self.pairs, self.several = Pairs(size), several

    def __iter__(self):
        pairs = (self.pairs[index] for index in range(len(self.pairs)))
        return (((image, image), label) for image, label in pairs) if self.several else pairs


class Pictures(Pairs):
    def __init__(self, mode, size=12):
        super().__init__(size)
        self.mode = mode

    def __getitem__(self, index):
        pixels = np.full((6, 5, 3), 20 * (index % CLASSES) + index, np.uint8)
        pixels[0, 1] = 255
        return Image.fromarray(pixels).convert(self.mode), index % CLASSES


class Sequences(Pairs):
    """Tokens: from 3 to 7 of them, the class among the first."""

    def __getitem__(self, index):
        tokens = [1 + index % CLASSES, *range(4, 6 + index % 5)]
        return {"input_ids": tokens, "labels": index % CLASSES}


def padded(items):
    """Token ids and a mask, as long as the longest."""
    longest = max(len(item["input_ids"]) for item in items)
    rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}, torch.tensor([item["labels"] for item in items])


class Reader(nn.Module):
    """A mean of tokens that are not padding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.fc = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, input_ids, attention_mask):
        weight = attention_mask[..., None].to(self.fc.weight.dtype)
        mean = (self.embedding(input_ids) * weight).sum(1) / weight.sum(1)
        return self.fc(torch.tanh(self.hidden(mean)))


class Broken(Pairs):
    """Item 17 is bad, in the way that is asked for."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        if index != 17:
            return image, label
        if self.how == "raises":
            raise OSError("scan 17.png\nis truncated")
        bad = {
            "shape": (image[:, 1:], label),
            "type": (image.double(), label),
            "kind": ("a string", label),
            "label": (image, 9),
            "half": (image, 0.5),
            "many": (image, torch.tensor([1, 2])),
            "nan": (image * torch.nan, label),
            "single": image,
            "triple": (image, label, 17),
            "keys": {"image": image, "target": label},
        }
        return bad[self.how]


class Huge(Dataset):
    """Small images without end, made when they are read."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((3, 8, 8), index % 10, dtype=torch.uint8), index % 10
