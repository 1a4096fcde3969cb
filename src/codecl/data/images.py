"""Images and labels as tensors: checked, cropped, and scaled to what a model sees."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from codecl.data.inputs import Inputs, shape_of, tensors_of
from codecl.errors import ConfigError, DataError

Images = tuple[Tensor, Tensor]  # images, labels
Numbers = Sequence[float]
PADDING = 4  # around an image that is cropped


def checked(task: str, split: str, data: tuple[Inputs, Tensor], classes: int) -> tuple[Inputs, Tensor]:
    """The tensors, with counts and labels that fit; labels as whole numbers."""
    inputs, labels = data
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in tensors_of(inputs)}
    if labels.ndim == 1 and (sizes != {len(labels)} or not len(labels)):
        several = ", ".join(map(str, sorted(sizes)))
        raise DataError(f"task {task!r}: {several} {split} images but {len(labels)} labels")
    labels = check_labels(f"task {task!r}: {split}", labels, classes)
    for tensor in tensors_of(inputs):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError(f"task {task!r}: the {split} images hold NaN or infinity")
    return inputs, labels


def check_labels(what: str, labels: Tensor, classes: int, which: Sequence[int] | None = None) -> Tensor:
    """Labels of classes, a whole number from 0 on for each image. `what` they are of, in errors, and `which` items."""
    if labels.ndim != 1:
        of = "" if which is None else f" item {which[0]}:"
        shape = list(labels.shape[which is not None :])
        raise DataError(f"{what}{of} labels have shape {shape}; it should be one number an image")
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        if which is None:
            raise DataError(f"{what} labels are not whole numbers")
        at = int((labels != labels.round()).nonzero()[0])
        raise DataError(f"{what} item {which[at]}: its label {labels[at]:g} is not a whole number")
    labels = labels.long()
    outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(outside) and which is not None:
        what = f"{what} item {which[int(outside[0])]}:"
    check_range(what, labels, classes)
    return labels


def check_range(what: str, labels: Tensor, classes: int) -> None:
    """Every label is one of the classes. `what` they are, in the error."""
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"{what} label {int(outside[0])} is outside 0 to {classes - 1} ({classes} classes)")


def scale_of(name: str, given: tuple[Numbers, Numbers], images: Inputs, dtype: torch.dtype) -> Images | None:
    """(factor, summand) that turn stored values into what the model sees, shaped to fit the images; `given`: mean and
    std by channel."""
    device = tensors_of(images)[0].device
    mean, std = (torch.as_tensor(part, dtype=dtype, device=device).flatten() for part in given)
    if not len(mean) and not len(std):
        return None
    if not isinstance(images, Tensor):
        raise DataError(f"task {name!r}: mean and std are for images; its inputs are several; scale them before")
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


def windows(name: str, images: Inputs, colour: Tensor | None) -> Tensor:
    """[n, C, 2P + 1, 2P + 1, H, W]: every crop of every image padded by P with a colour (none: black); a view of one
    padded copy."""
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ConfigError(
            f"data.augment: crop-flip needs images [channels, height, width]; those of task {name!r} are"
            f" {shape_of(images)}"
        )
    height, width = images.shape[-2:]
    padded = functional.pad(images, (PADDING,) * 4)
    if colour is not None:
        inside = padded.new_zeros(padded.shape[-2:], dtype=torch.bool)
        inside[PADDING:-PADDING, PADDING:-PADDING] = True
        padded = torch.where(inside, padded, colour)
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def cropped(name: str, images: Inputs, crops_N3: Tensor, colour: Tensor | None) -> Tensor:
    """Each image's window with this corner (down, right), mirrored or not."""
    down, right, mirrored = crops_N3.unbind(-1)
    cut = windows(name, images, colour)[torch.arange(len(crops_N3)), :, down, right]
    return flipped(cut, mirrored)


def flipped(images: Tensor, mirrored: Tensor) -> Tensor:
    """Images [..., C, H, W], those that are mirrored [...] from left to right."""
    return torch.where(mirrored.bool()[..., None, None, None], images.flip(-1), images)


def seen_as_0(images: Tensor, scale: Images | None) -> Tensor | None:
    """[C, 1, 1]: the stored colour that the model sees as 0, as near as the images' type holds it."""
    if scale is None:
        return None
    colour = -scale[1] / scale[0]
    return (colour if images.is_floating_point() else colour.round()).to(images.dtype)
