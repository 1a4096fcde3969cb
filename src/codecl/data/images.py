"""Images and labels as tensors: checked, cropped, and scaled to what a model sees."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from codecl.data.targets import Targets, checked_numbers
from codecl.errors import ConfigError, DataError

Images = tuple[Tensor, Tensor]  # images, labels
Numbers = Sequence[float]
PADDING = 4  # around an image that is cropped


def checked(task: str, split: str, data: Images, classes: int, targets: Targets = "classes") -> Images:
    """The tensors, with counts and labels that fit; classes as whole numbers."""
    images, labels = data
    if labels.ndim == 0 or (labels.ndim > 1 and targets == "classes"):
        raise DataError(
            f"task {task!r}: {split} labels have shape {list(labels.shape)}; it should be one number an image"
        )
    if len(images) != len(labels) or not len(labels):
        raise DataError(f"task {task!r}: {len(images)} {split} images but {len(labels)} labels")
    if targets == "classes":
        labels = _classes(task, split, labels, classes)
    else:
        labels = checked_numbers(f"task {task!r}: {split}", labels, classes, targets)
    if images.is_floating_point() and not bool(images.isfinite().all()):
        raise DataError(f"task {task!r}: the {split} images hold NaN or infinity")
    return images, labels


def _classes(task: str, split: str, labels: Tensor, classes: int) -> Tensor:
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        raise DataError(
            f"task {task!r}: {split} labels are not whole numbers; where they are not classes, say what is learned:"
            " train.loss=mse, bce or a function of your own"
        )
    check_range(f"task {task!r}: {split}", labels.long(), classes)
    return labels.long()


def check_range(what: str, labels: Tensor, classes: int) -> None:
    """Every label is one of the classes. `what` they are, in the error."""
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"{what} label {int(outside[0])} is outside 0 to {classes - 1} ({classes} classes)")


def scale_of(name: str, given: tuple[Numbers, Numbers], images: Tensor, dtype: torch.dtype) -> Images | None:
    """(factor, summand) that turn stored values into what the model sees, shaped to fit the images; `given`: mean and
    std by channel."""
    mean, std = (torch.as_tensor(part, dtype=dtype, device=images.device).flatten() for part in given)
    if not len(mean) and not len(std):
        return None
    channels = images.shape[1] if images.ndim > 1 else 1
    fits = len(mean) == len(std) and len(mean) in (1, channels) and bool(mean.isfinite().all())
    if not fits or not bool((std > 0).all()):
        raise DataError(
            f"task {name!r}: mean {mean.tolist()} and std {std.tolist()} do not fit {channels} channels (a number for"
            " each, std above 0)"
        )
    shape, largest = (-1, *(1 for _ in images.shape[2:])), 255 if images.dtype == torch.uint8 else 1
    return (1 / (largest * std)).view(shape), (-mean / std).view(shape)


def prepared(images: Tensor, scale: Images | None, dtype: torch.dtype) -> Tensor:
    """Stored images -> what the model sees."""
    if not images.is_floating_point() and images.dtype != torch.uint8:
        return images
    values = images.to(dtype)
    if scale is None:
        return values / 255 if images.dtype == torch.uint8 else values
    return torch.addcmul(scale[1], values, scale[0])


def windows(name: str, images: Tensor, colour: Tensor | None) -> Tensor:
    """[n, C, 2P + 1, 2P + 1, H, W]: every crop of every image padded by P with a colour (none: black); a view of one
    padded copy."""
    if images.ndim != 4:
        raise ConfigError(
            f"data.augment: crop-flip needs images [channels, height, width]; those of task {name!r} are"
            f" {list(images.shape[1:])}"
        )
    height, width = images.shape[-2:]
    padded = functional.pad(images, (PADDING,) * 4)
    if colour is not None:
        inside = padded.new_zeros(padded.shape[-2:], dtype=torch.bool)
        inside[PADDING:-PADDING, PADDING:-PADDING] = True
        padded = torch.where(inside, padded, colour)
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def seen_as_0(images: Tensor, scale: Images | None) -> Tensor | None:
    """[C, 1, 1]: the stored colour that the model sees as 0, as near as the images' type holds it."""
    if scale is None:
        return None
    colour = -scale[1] / scale[0]
    return (colour if images.is_floating_point() else colour.round()).to(images.dtype)
