"""Settings of training."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from codecl.data.targets import Targets
from codecl.registry import near
from codecl.train import corrections
from codecl.train.execution import Execution, Precision
from codecl.train.objective import LOSSES, SCORE_OF, SCORES, TARGETS
from codecl.train.plateau import PlateauConfig

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(10, gt=0, description="of each task")
    batch_size: int = Field(10, gt=0, description="images of an agent's batch")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="η, the learning rate, at a task's start")
    milestones: tuple[float, ...] = Field((0.5, 0.75), description="parts of the epochs after which η is multiplied")
    gamma: float = Field(0.1, gt=0, le=1, description="what η is multiplied with at a milestone")
    schedule: Literal["steps", "cosine", "plateau"] = Field(
        "steps",
        description="η falls at milestones, along a cosine to 0, or when the loss on data.held_out has stopped falling"
        " (one agent alone)",
    )
    plateau: PlateauConfig = PlateauConfig()
    warmup_epochs: int = Field(0, ge=0, description="epochs of each task in which η rises to its full value")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="what makes a step of a gradient, in coordinates")
    momentum: float = Field(0, ge=0, lt=1, description="β of sgd, in coordinates: momentum on projected gradients")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), description="of adamw: what it keeps in a step of the mean gradient, and of the mean square"
    )
    eps: float = Field(1e-8, gt=0, description="of adamw: what is added to the root of the mean square")
    weight_decay: float = Field(
        0, ge=0, description="λ, of all that trains: added to the gradient (sgd), or to the step beside it (adamw)"
    )
    decay: Literal["weights", "coordinates"] = Field(
        "weights",
        description="what decays: weights, towards 0; or coordinates, towards the weights that the task began with",
    )
    clip_norm: float | None = Field(
        None, gt=0, description="largest norm of an agent's gradient in coordinates; null: it is not clipped"
    )
    loss: str = Field(
        "cross-entropy",
        description="what is minimised: cross-entropy (of classes), mse (of numbers), bce (several labels an image,"
        " outputs are logits), or file.py:function of (outputs, targets)",
    )
    score: str = Field(
        "accuracy",
        description="what test images are scored with, the higher the better: accuracy, r2, negative-mse,"
        " label-accuracy, f1, or file.py:function of (outputs, targets); where it is left out, what goes with the loss",
    )
    label_smoothing: float = Field(
        0, ge=0, lt=1, description="of cross-entropy: the part of a label that is spread over all classes"
    )
    order: Literal["paper", "adapt-then-combine"] = Field("paper", description="mix before or after the local step")
    correction: corrections.Name = Field(
        "none",
        validate_default=True,
        description="for agents whose data differ, with adapt-then-combine: exact-diffusion, gradient-tracking (twice"
        " the messages), or quasi-global (momentum on what agents moved together)",
    )
    gossip_rounds: int = Field(
        1,
        ge=1,
        le=64,
        description="rounds of gossip a step, each with a message to every neighbour; on an undirected graph their"
        " results are combined so that least is left of what agents differ in (Chebyshev)",
    )
    execution: Execution | Literal["auto"] = Field(
        "auto",
        description="how agents share a device: stacked, streams or loop; auto: what is fastest, measured once",
    )
    precision: Precision = Field("tf32", description="of products while training: highest, tf32 (on a GPU) or bf16")
    test_batch_size: int = Field(64, gt=0, description="images of a test batch")
    norm_statistics: Literal["batch", "task", "gossip", "group"] = Field(
        "batch",
        description="of batch norms: batch, its own; task, when predicting those of the task, measured when it ends;"
        " gossip, those that agents share while they train; group, each image's own: group norms take their place",
    )

    @field_validator("milestones")
    @classmethod
    def _inside(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < milestone < 1 for milestone in value):
            raise ValueError("parts of the epochs lie between 0 and 1")
        return value

    @model_validator(mode="before")
    @classmethod
    def _score_of_loss(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "score" not in fields and fields.get("loss") in SCORE_OF:
            return {**fields, "score": SCORE_OF[fields["loss"]]}
        return fields

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str) -> str:
        return _known(value, LOSSES)

    @field_validator("score")
    @classmethod
    def _known_score(cls, value: str) -> str:
        return _known(value, SCORES)

    @field_validator("label_smoothing")
    @classmethod
    def _of_classes(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("loss", "cross-entropy") != "cross-entropy":
            raise ValueError(f"only cross-entropy has it, and train.loss is {info.data['loss']}; leave it out")
        return value

    @field_validator("momentum")
    @classmethod
    def _of_sgd(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("optimizer") == "adamw":
            raise ValueError("adamw has its own momentum, the first of train.betas; leave it out, or use sgd")
        return value

    @field_validator("correction")
    @classmethod
    def _fits(cls, value: str, info: ValidationInfo) -> str:
        known = info.data
        if value != "none" and known.get("order") == "paper":
            raise ValueError(f"{value} mixes after the step; set train.order=adapt-then-combine")
        if value == "quasi-global" and (not known.get("momentum") or known.get("optimizer") != "sgd"):
            raise ValueError("quasi-global is a momentum of sgd; set train.momentum, for example 0.9")
        return value

    @property
    def local_momentum(self) -> float:
        """β of each agent's own steps."""
        return 0.0 if self.correction == "quasi-global" else self.momentum

    @property
    def messages_a_step(self) -> int:
        """To each neighbour."""
        return self.gossip_rounds * corrections.CORRECTIONS[self.correction].sent

    @property
    def targets(self) -> Targets:
        """What the loss takes."""
        return TARGETS.get(self.loss, "any")

    def lr_at(self, epoch: int) -> float:
        """η of this epoch, reset for each task. `steps`, as in the paper: ÷10 after 50 % and 75 % of the epochs."""
        lr = self.lr * min(1.0, (epoch + 1) / (self.warmup_epochs + 1))
        if self.schedule == "cosine":
            return lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return lr * self.gamma ** sum(epoch >= milestone * self.epochs for milestone in self.milestones)


def _known(name: str, table: Mapping[str, Any]) -> str:
    """A name of the table, or one of a user's own; whether that is there is seen when it is needed."""
    if name not in table and ":" not in name:
        raise ValueError(f"there are {', '.join(table)}, file.py:function{near(name, table)}")
    return name
