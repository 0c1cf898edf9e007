"""What a training run is told: one frozen dataclass, written beside every result."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from torchcaps.checks import check_choice, check_count, check_positive
from torchcaps.data.augment import Augmentation

LOSSES = ("auto", "margin", "spread", "cross_entropy", "softmax_cross_entropy")
SCHEDULES = ("cosine", "step", "plateau", "constant")
OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("no", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train.

    Attributes:
        epochs: passes over the training data, unless max_minutes is given.
        max_minutes: train for about this long; the number of steps is fixed after a timed trial and stored.
        batch_size: images per optimiser step, over all processes.
        accumulate: micro-batches that a step is cut into, to save memory; the result is the same but for models with
            batch norm, whose statistics are those of a micro-batch.
        optimizer: "adamw" or "sgd" (with Nesterov momentum 0.9).
        learning_rate: at its highest.
        weight_decay: decoupled for adamw.
        schedule: of the learning rate: "cosine" to zero, "step" (times 0.1 at 1/2 and 3/4), "plateau" (times 0.5
            when validation has not improved for 3 epochs) or "constant".
        warmup: share of the steps in which the learning rate rises from zero.
        clip_norm: largest norm of the gradient, None for no limit.
        ema: decay of the moving average of the weights that is evaluated and saved, None for none.
        loss: "auto" is the model's own. Of activations "cross_entropy" is -log(a_t / sum a), "softmax_cross_entropy"
            -log softmax(a)_t.
        balance_classes: in the margin and the spread loss all absent classes together weigh as much as nine do, so that
            the loss does not grow with their number; the same for ten classes.
        spread_margin: of the spread loss, from first to last step.
        reconstruction_weight: of the summed squared error of an image; None is the model's own.
        inverse_temperature: of K-Means and EM routings, from first to last step, None to leave it.
        class_weights: of the examples of each class; "balanced" takes the inverse of its frequency.
        early_stopping: epochs without improvement on validation after which training ends, None for never.
        precision: "no", "bf16" or "fp16" for automatic mixed precision; capsule layers keep the weights' precision.
        augmentation: of the training images.
        mixup: pictures are mixed with others, and their losses alike, in shares from Beta(mixup, mixup); None for not.
        seed: all randomness derives from (seed, epoch, step).
        checkpoint_minutes: how often the state is saved within an epoch; it always is at the end of one.
        trackers: names of trackers that accelerate knows, such as "tensorboard".
    """

    epochs: int = 12
    max_minutes: float | None = None
    batch_size: int = 64
    accumulate: int = 1
    optimizer: str = "adamw"
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    schedule: str = "cosine"
    warmup: float = 0.05
    clip_norm: float | None = 5.0
    ema: float | None = 0.99
    loss: str = "auto"
    balance_classes: bool = False
    spread_margin: tuple[float, float] = (0.2, 0.9)
    reconstruction_weight: float | None = None
    inverse_temperature: tuple[float, float] | None = None
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None
    early_stopping: int | None = None
    precision: str = "no"
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixup: float | None = None
    seed: int = 0
    checkpoint_minutes: float = 2.0
    trackers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("accumulate", self.accumulate)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("loss", self.loss, LOSSES)
        check_choice("precision", self.precision, PRECISIONS)
        check_positive("learning_rate", self.learning_rate)
        if self.early_stopping is not None and self.early_stopping < 1:
            raise ValueError(f"early_stopping must be at least 1 epoch, got {self.early_stopping}")
        if isinstance(self.class_weights, str):
            check_choice("class_weights", self.class_weights, ("balanced",))
        elif self.class_weights is not None and not all(weight >= 0 for weight in self.class_weights):
            raise ValueError(f"class_weights must be 0 or more, one for each class, got {self.class_weights}")
        for name in ("max_minutes", "clip_norm", "checkpoint_minutes", "mixup"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must be between 0 and 1, got {self.ema}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be a share of the steps in [0, 1), got {self.warmup}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingConfig":
        """What `to_dict` gave, after a trip through JSON."""
        known = {entry.name for entry in fields(cls)}
        if unknown := set(values) - known:
            raise ValueError(f"unknown training options: {', '.join(sorted(unknown))}")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        if isinstance(values.get("augmentation"), dict):
            values["augmentation"] = Augmentation(**values["augmentation"])
        return cls(**values)
