"""Whether a loss and a score fit the tasks, and a user's own give what they should: tried before anything trains."""

import math

import torch

from codecl.data.inputs import take
from codecl.data.task import TaskData
from codecl.errors import ConfigError, RunFailed
from codecl.space.layout import Parameters
from codecl.space.tracing import logits
from codecl.train import scoring
from codecl.train.config import TrainConfig
from codecl.train.objective import LOSSES, SCORES, loss_of, score_of
from codecl.train.state import Setup


def check_objective(setup: Setup, parameters: Parameters) -> None:
    """A user's loss on a batch of the first task, a user's score on its test images, of the model as it is given; a
    score of ours with the labels of each task."""
    data, train = setup.tasks[0], setup.train
    try:
        if train.loss not in LOSSES:
            _check_loss(setup, data, parameters)
        for task in setup.tasks:
            _check_labels(train, task)
        if train.score not in SCORES:
            batch_size = train.test_batch_size
            parts = data.test_images(batch_size)
            score_of(train)(*scoring.outputs_of(setup.module, parameters, parts, batch_size))
    except RunFailed as error:
        raise ConfigError(str(error)) from error


def _check_labels(config: TrainConfig, data: TaskData) -> None:
    shape = data.train.some_labels().shape
    numbers = shape[1:].numel() == data.classes
    if config.score == "accuracy" and not data.has_classes:
        raise ConfigError(
            f"train.score: accuracy is of classes, and labels of task {data.name!r} are numbers; use r2, negative-mse,"
            " label-accuracy, f1 or a function of your own"
        )
    if config.score in SCORES and config.score != "accuracy" and (config.loss == "cross-entropy" or not numbers):
        raise ConfigError(
            f"train.score: {config.score} takes a number for each of the {data.classes} outputs, and labels of task"
            f" {data.name!r} are {'classes' if data.has_classes else list(shape)}; use accuracy or a"
            " function of your own"
        )


def _check_loss(setup: Setup, data: TaskData, parameters: Parameters) -> None:
    name = setup.train.loss
    images_AB, labels_AB = next(data.epoch(0, setup.exchange.agents[:1], setup.train.batch_size))
    outputs = logits(setup.module, take(images_AB, 0), parameters).detach().requires_grad_()
    with torch.enable_grad():
        value = loss_of(setup.train)(outputs, labels_AB[0])
    if not math.isfinite(float(value.detach())):
        raise ConfigError(f"train.loss: {name} gives {float(value)} for the first batch, before anything is learned")
    if not value.requires_grad:
        raise ConfigError(f"train.loss: {name} gives a number that does not depend on the outputs; nothing is learned")
