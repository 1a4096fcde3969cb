"""RunConfig: everything that decides a run's numbers, assembled from the parts that live beside their owners."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from codecl.data import store, streams
from codecl.data.config import DataConfig
from codecl.errors import ConfigError
from codecl.exchange.messages import MessageConfig
from codecl.exchange.robust import FaultsConfig
from codecl.exchange.topology import TOPOLOGIES, TopologyConfig, with_edges
from codecl.methods import METHODS, Method
from codecl.models import MODELS
from codecl.registry import lookup, source_digest
from codecl.runs import pretrained, yamlfile
from codecl.runs.checkpoint import CheckpointConfig
from codecl.space import directions
from codecl.space.directions import FreeConfig, OwnConfig
from codecl.space.growth import GrowthConfig
from codecl.train.config import TrainConfig
from codecl.train.objective import LOSSES, SCORES
from codecl.train.privacy import PrivacyConfig

Fields = Mapping[str, Any]
RENAMED = {  # fields of schema 1
    "train.batch": "train.batch_size",
    "train.rate": "train.lr",
    "train.decay": "train.gamma",
    "train.warmup": "train.warmup_epochs",
    "train.smoothing": "train.label_smoothing",
    "train.running": "train.execution",
    "train.test_batch": "train.test_batch_size",
    "data.shards": "data.partition",
    "data.surround": "data.crop_fill",
    "data.steps": "data.steps_per_epoch",
    "data.mine": "data.local_path",
    "growth.least_images": "growth.min_images",
}


class Choice(BaseModel):
    """A name and the options of the thing it names."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class MethodChoice(Choice):
    """Any method of the table or a user's own, its options checked and completed by the method itself."""

    name: str = Field(description="a name from `codecl methods`, or file.py:Class")

    def kind(self) -> type[Method]:
        kind = lookup("method", METHODS, self.name)
        if not (inspect.isclass(kind) and issubclass(kind, Method)):
            raise ConfigError(f"method: {self.name!r} is not a codecl Method class")
        return kind

    def build(self) -> Method:
        return yamlfile.checked(self.kind(), self.options, field="method")


class ModelChoice(Choice):
    """Any model of the table or a user's own function of (shape, classes, **options)."""

    name: str = Field(description="a name from `codecl models`, or file.py:function")

    def check(self) -> None:
        if self.name == "own":
            return
        parameters = inspect.signature(lookup("model", MODELS, self.name)).parameters
        known = list(parameters)[2:]
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for option in self.options:
            if option not in known and not takes_any:
                raise ConfigError(
                    f"model.{option}: {self.name} has no such option; there are {', '.join(known) or 'none'}"
                )


class RunConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str = Field("quickstart", pattern=r"^[\w.-]*\w$", description="the benchmark's name")
    seed: int = Field(0, ge=0, description="of everything random")
    dtype: Literal["float32", "float64"] = Field("float32", description="of weights and messages")
    agents: int = Field(4, ge=1, le=4096, description="how many learn together")
    topology: TopologyConfig = TopologyConfig()
    data: DataConfig = DataConfig()
    model: ModelChoice = ModelChoice(name="convnet")
    init: str | None = Field(
        None, description="a .safetensors file of weights to start from: by name what fits; null: the model's own"
    )
    head: str | None = Field(
        "auto", description="the Linear each task has of its own; auto: the last called; null: shared"
    )
    dense: tuple[str, ...] = Field(
        (), description="parameters (or patterns such as embed.*) that train whole in every task, and may forget"
    )
    fixed: tuple[str, ...] = Field(
        (), description="parameters that never train, by name or pattern, for example of a pretrained part: encoder.*"
    )
    frozen: tuple[str, ...] = Field(
        (), description="parameters (or patterns such as encoder.*) that train in the first task only"
    )
    method: MethodChoice = MethodChoice(name="codec")
    growth: GrowthConfig = GrowthConfig()
    message: MessageConfig = MessageConfig()
    own: OwnConfig = OwnConfig()
    free: FreeConfig = FreeConfig()
    norms: Literal["first", "own", "shared"] = Field(
        "first",
        description="parameters of norms, and others that multiply no inputs: trained in the first task only, each"
        " task's own, or trained in every task and shared (sent whole, may forget)",
    )
    train: TrainConfig = TrainConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    faults: FaultsConfig = FaultsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sources: dict[str, str] = Field({}, description="digests of the caller's own code and of data set files, filled in")

    @field_validator("topology", "method", "model", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def digest(self) -> str:
        """Of everything but the seed: runs that differ in their seed alone belong together."""
        fields = {key: value for key, value in self.decisive().items() if key != "seed"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def decisive(self) -> dict[str, Any]:
        """The fields that decide a run: not how often it saves itself, nor where an agent's own data is or who reads
        it."""
        return self.model_dump(mode="json", exclude={"checkpoint": True, "data": {"local_path", "workers"}})

    def dump(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def validate(fields: Fields) -> RunConfig:
    """The config with these fields, every option of its method filled in; ConfigError names the first that is off."""
    config = parse(fields)
    config.model.check()
    streams.check_local_path(config.data)
    method = config.method.build()
    _check_schedule(config)
    _check_optimizer(config, method)
    _check_pool(config)
    _check_votes(config, method.grows)
    _check_privacy(config)
    directions.check(config.own, config.free, config.method.name, method.grows)
    options = method.model_dump(mode="json")
    owned = {
        "method": source_digest("method", METHODS, config.method.name),
        "model": source_digest("model", MODELS, config.model.name),
        "topology": source_digest("topology", TOPOLOGIES, config.topology.name),
        "data": stream_digest(config.data),
        "init": pretrained.file_digest(config.init) if config.init and "init" not in config.sources else None,
        "loss": source_digest("train.loss", LOSSES, config.train.loss),
        "score": source_digest("train.score", SCORES, config.train.score),
    }
    return config.model_copy(
        update={
            "method": MethodChoice(name=config.method.name, **options),
            "topology": with_edges(config.topology),
            "sources": {**config.sources, **{part: code for part, code in owned.items() if code}},
        }
    )


def _check_schedule(config: RunConfig) -> None:
    """A schedule that watches the loss has images to watch, and one agent that sees them."""
    watches, held_out = config.train.schedule == "plateau", config.data.held_out
    if watches and config.agents != 1:
        raise ConfigError(
            f"train.schedule: plateau is for one agent, and there are {config.agents}: none sees the others' loss; use"
            " cosine or steps"
        )
    if watches != (held_out > 0):
        raise ConfigError(
            f"data.held_out: {held_out:g} does not fit train.schedule={config.train.schedule}; only plateau, and it"
            " needs some, for example 0.05"
        )


def _check_optimizer(config: RunConfig, method: Method) -> None:
    """A method that adds to the gradient gets the gradient."""
    if config.train.optimizer != "sgd" and method.needs_gradient:
        raise ConfigError(
            f"train.optimizer: {config.train.optimizer} does not fit method {config.method.name}, which needs the"
            " gradient itself; use sgd"
        )


def _check_votes(config: RunConfig, grows: bool) -> None:
    """What an agent grows is voted on by enough of them to outvote it."""
    if config.growth.robust == "vote" and config.agents < 3:
        raise ConfigError(
            f"growth.robust: vote needs 3 agents or more, there are {config.agents}: of two, none is outvoted"
        )
    if config.growth.robust == "vote" and not grows:
        raise ConfigError(f"growth.robust: {config.method.name} grows nothing to vote on; use none, or codec")


def _check_pool(config: RunConfig) -> None:
    """A sum of two hides nothing."""
    if config.growth.pool == "masked" and config.agents < 3:
        raise ConfigError(
            f"growth.pool: masked needs 3 agents or more, there are {config.agents}: of two, each could subtract its"
            " own part from the sum; use plain"
        )


def _check_privacy(config: RunConfig) -> None:
    if config.privacy.is_on and config.train.schedule == "plateau":
        raise ConfigError("train.schedule: plateau looks at images without noise, and privacy.clip is set; use cosine")


def stream_digest(data: DataConfig, known: Mapping[str, str] | None = None) -> str | None:
    """Of the code and the files behind a stream, or behind each of several; not of an agent's own files. `known`: of
    files that may be gone."""
    codes = [source_digest("data.stream", streams.STREAMS, part) for part in data.stream.split(streams.PLUS)]
    return streams.joined([*codes, None if data.local_path else streams.digest(data.stream, known or {})])


def data_files(data: DataConfig, known: Mapping[str, str]) -> dict[str, str]:
    """Digests of the data set files behind a stream, by name; of one that is gone, as it is `known`."""
    names = [] if data.local_path else streams.data_sets(data.stream)
    digests = {name: store.digest(name) or known.get(name) for name in names}
    return {name: digest for name, digest in digests.items() if digest}


def parse(fields: Fields) -> RunConfig:
    """A config as it was recorded: its method need not be here."""
    try:
        return yamlfile.checked(RunConfig, fields)
    except ConfigError as error:
        for old, new in RENAMED.items():
            section, name = old.split(".")
            is_there = isinstance(fields.get(section), Mapping) and name in fields[section]
            if is_there and (old != "train.decay" or str(error).startswith(old)):  # there is another of this name now
                raise ConfigError(f"{old} is now {new}") from error
        raise


def merge(base: Fields, changes: Fields) -> dict[str, Any]:
    """Nested fields of `base` with those of `changes` put over them. A changed `name` drops the options of the old."""
    out = dict(base)
    for key, value in changes.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            name = before.get("name") if key in ("method", "model") else None
            renamed = name is not None and value.get("name", name) != name
            out[key] = merge({} if renamed else before, value)
        else:
            out[key] = value
    return out


def difference(a: RunConfig, b: RunConfig) -> list[str]:
    """Fields in which two configs differ, as `field: a, b`."""
    left, right = flat(a.decisive()), flat(b.decisive())
    return [f"{k}: {left.get(k)}, {right.get(k)}" for k in left | right if left.get(k) != right.get(k)]


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested fields by their dotted names."""
    if not isinstance(value, dict):
        return {path: value}
    return {
        name: leaf for key, inner in value.items() for name, leaf in flat(inner, f"{path}.{key}".strip(".")).items()
    }
