"""Differential privacy of an agent's images (DP-SGD, Abadi et al. 2016): the gradient of every single image is clipped,
and noise is added to their sum, on the agent itself, before anything is mixed or sent.

Shapes: A agents of this process, B images of a batch, D coordinates of an agent.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from codecl.data.inputs import Inputs, each, take
from codecl.data.task import TaskData
from codecl.errors import ConfigError
from codecl.registry import reason
from codecl.space import norms
from codecl.space.layout import Layout, Parameters, parameters_of
from codecl.train import accounting
from codecl.train.execution import Execution, Precision, multiplying

TINY = 1e-12  # beside a norm that is divided by
Loss = Callable[[Parameters, Inputs, Tensor], Tensor]  # of what an agent has of its own, images and labels


class PrivacyConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest norm of one image's gradient in coordinates; null: off"
    )
    noise: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        validate_default=True,
        description="standard deviation of the noise on the sum of a batch's gradients, in units of privacy.clip; 0:"
        " none, and no guarantee",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the (ε, δ) that metrics.json states")

    @field_validator("noise")
    @classmethod
    def _of_clipped(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("clip") is None:
            raise ValueError("noise is in units of privacy.clip, which is not set; for example privacy.clip=1")
        return value

    @property
    def is_on(self) -> bool:
        return self.clip is not None


class Noise(Protocol):
    """Standard normal numbers, other ones for every step of every agent."""

    counts: Counter[int]  # by task: how many steps were given some

    def draw(self, agent: int, task: int, step: int, size: int) -> np.ndarray: ...


class SeededNoise:
    """Law: the same for the same seed, agent, task and step, in every exchange. Whoever knows the seed knows it: for
    studies in one place, where all agents are the same person's."""

    def __init__(self, seed: int) -> None:
        self.seed, self.counts = seed, Counter[int]()

    def draw(self, agent: int, task: int, step: int, size: int) -> np.ndarray:
        self.counts[task] = max(self.counts[task], step + 1)
        return normal(f"{self.seed}/noise/{agent}/{task}/{step}".encode(), size)


class SecretNoise:
    """From a secret of this process. Law: no two draws are alike, also where a step is taken again."""

    def __init__(self) -> None:
        self._secret, self._draws, self.counts = secrets.token_bytes(32), 0, Counter[int]()

    def draw(self, agent: int, task: int, step: int, size: int) -> np.ndarray:
        self.counts[task] += 1
        self._draws += 1
        return normal(self._secret + self._draws.to_bytes(8, "big"), size)


def normal(key: bytes, size: int) -> np.ndarray:
    """Standard normal numbers from a key: SHAKE-256, then Box and Muller. Nobody can tell them without the key."""
    pairs = -(-size // 2)
    words = np.frombuffer(hashlib.shake_256(key).digest(16 * pairs), dtype="<u8")
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


class PrivateGradient:
    """Loss and gradient of all agents of this process: (Σ clipped gradients of single images + noise) / B.

    Laws: stacked agents equal a loop; what one image changes in the sum is no longer than 2 · clip."""

    def __init__(
        self, loss: Loss, layout: Layout, config: PrivacyConfig, execution: Execution, precision: Precision
    ) -> None:
        assert config.clip is not None
        self.layout, self.clip, self.noise = layout, config.clip, config.noise
        self.execution, self.precision = execution, precision

        def of_image(coords_D: Tensor, image: Inputs, label: Tensor) -> Tensor:
            own: dict[str, Tensor] = {}
            for slot, piece in layout.pieces(coords_D):
                if slot.size:
                    own.update(parameters_of(slot, piece))
            return loss(own, each(lambda tensor: tensor[None], image), label[None])

        of_images = vmap(grad_and_value(of_image), (None, 0, 0), randomness="different")
        self._of_agent: Callable[..., tuple[Tensor, Tensor]] = of_images
        self._of_all = vmap(of_images, randomness="different")

    def __call__(
        self, coords_AD: Tensor, images_AB: Inputs, labels_AB: Tensor, noise_AD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(mean loss [A], gradient [A, D]); `noise_AD`: standard normal."""
        with multiplying(self.precision, labels_AB.device):
            grads_ABD, losses_AB = self._single(coords_AD.detach(), images_AB, labels_AB)
        sum_AD = clipped(grads_ABD, self.clip).sum(1) + self.noise * self.clip * noise_AD
        return losses_AB.mean(1).detach(), sum_AD / labels_AB.shape[1]

    def _single(self, coords_AD: Tensor, images_AB: Inputs, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and loss of every image."""
        if self.execution == "stacked":
            try:
                return self._of_all(coords_AD, images_AB, labels_AB)
            except RuntimeError:
                self.execution = "loop"
        try:
            found = [
                self._of_agent(coords_D, take(images_AB, agent), labels_AB[agent])
                for agent, coords_D in enumerate(coords_AD)
            ]
        except RuntimeError as error:
            raise ConfigError(
                f"privacy.clip: gradients of single images cannot be taken of this model ({reason(error)}); leave"
                " privacy out, or use another model"
            ) from error
        return torch.stack([grads for grads, _ in found]), torch.stack([losses for _, losses in found])


def clipped(grads_ABD: Tensor, clip: float) -> Tensor:
    """Each image's gradient, no longer than this."""
    norm_AB1 = grads_ABD.norm(dim=-1, keepdim=True)
    return grads_ABD * (clip / (norm_AB1 + TINY)).clamp(max=1)


def drawn(noise: Noise, agents: Sequence[int], task: int, step: int, like_AD: Tensor) -> Tensor:
    """Noise of these agents for a step [A, D]."""
    rows = [noise.draw(agent, task, step, like_AD.shape[1]) for agent in agents]
    return torch.from_numpy(np.stack(rows)).to(like_AD)


def check(config: PrivacyConfig, module: nn.Module, tasks: Sequence[TaskData], batch: int) -> None:
    """Refuse what has no guarantee, before anything trains."""
    if not config.is_on:
        return
    mixing = norms.batch_norms(module)
    if mixing:
        raise ConfigError(
            f"privacy.clip: {next(iter(mixing)) or 'the model'!r} is a batch norm, which mixes the images of a batch:"
            " none has a gradient of its own; use norms that do not, such as model.norm=group"
        )
    for data in tasks:
        shard = min(map(len, data.partition))
        if data.sampling == "replacement":
            raise ConfigError(
                "data.sampling: replacement can take an image twice into a batch, which privacy does not count; use"
                " subsets or shuffle"
            )
        if data.sampling == "shuffle" and data.steps(batch) * batch > shard + batch:
            raise ConfigError(
                f"data.sampling: shuffle goes through the {shard} images of an agent more than once an epoch, which"
                " privacy does not count; use subsets, or fewer data.steps_per_epoch"
            )
    if config.noise:
        accounting.needed()
