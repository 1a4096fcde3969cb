"""Which tasks there are, and how their images are read, dealt and drawn."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationInfo, field_validator

from codecl.data import partition as partitions
from codecl.data import sizes
from codecl.data.forms import Loading

Std = Annotated[FiniteFloat, Field(gt=0)]


class DataConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field("quickstart", description="a named stream of tasks, file.py:function, or the caller's own")
    tasks: int | None = Field(None, gt=0, description="so many tasks of the stream, from the first on; null: all")
    partition: str = Field(
        "iid",
        description="how a task's images are dealt to agents: iid, dirichlet(α), skew(s), shards(k) or classes(k)",
    )
    sizes: str = Field(
        "equal",
        description="how many of a task's images agents have: equal, or dirichlet(α), the more unequal the smaller α"
        f" is, at least {sizes.MIN_IMAGES} each, or half of an equal share where that is less",
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
    loading: Loading = Field(
        "auto",
        description="memory: a data set is read once; stream: its items are read anew in every epoch; auto: memory"
        " where it takes less than 1 GiB and items of it do not change from one time to the next. Tensors are in memory"
        " always",
    )
    workers: int = Field(
        0, ge=0, le=256, description="processes that read a data set's items; 0: none beside that which trains"
    )
    digest: str | None = Field(None, description="of the caller's own tensors, one a task")
    mean: tuple[FiniteFloat, ...] = Field(
        (), description="by channel, of values from 0 to 1; empty: the stream's, or measured"
    )
    std: tuple[Std, ...] = Field((), validate_default=True, description="by channel, as many as data.mean has")
    steps_per_epoch: int | None = Field(
        None,
        gt=0,
        description="steps of an epoch, the same for every agent; null: as many full batches as agents have on average",
    )
    drop_last: bool = Field(
        True,
        description="an epoch's last batch, where the images that agents have on average leave a smaller one, is"
        " left out",
    )
    sampling: Literal["shuffle", "replacement", "subsets"] = Field(
        "shuffle",
        description="an epoch's images: a fresh shuffle of the shard, draws with replacement, as analyses assume, or"
        " for each batch a subset of the shard, drawn anew",
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

    @field_validator("sizes")
    @classmethod
    def _known_sizes(cls, value: str) -> str:
        sizes.parse(value)
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
