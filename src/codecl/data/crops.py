"""Every crop of an image, for training on a piece of it that moves."""

import torch
from torch import Tensor
from torch.nn import functional

from codecl.errors import ConfigError

PADDING = 4  # around an image that is cropped


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


def seen_as_0(images: Tensor, scale: tuple[Tensor, Tensor] | None) -> Tensor | None:
    """[C, 1, 1]: the stored colour that the model sees as 0, as near as the images' type holds it."""
    if scale is None:
        return None
    colour = -scale[1] / scale[0]
    return (colour if images.is_floating_point() else colour.round()).to(images.dtype)
