"""What every kind of input answers to: models, training, predictor and export know no more of images and texts."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from torchcaps.inputs.source import Examples, Source

if TYPE_CHECKING:
    from torch import Tensor


class Taken(NamedTuple):
    """What a model, or a file with its preprocessing inside, takes: name, shape of one input, and type.

    Of whole numbers that are no bytes `largest` is the largest that every model takes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    largest: int = 1


class Inputs(Protocol):
    """From raw inputs to what a model takes: the Preprocessing of images, the TextEncoding of texts.

    Attributes:
        kind: what raw inputs are called: "image", "text".
    """

    kind: ClassVar[str]

    def __call__(self, raw: Any, /) -> "Tensor":
        """What a model takes, from raw inputs."""
        ...

    def open(self, examples: Examples, /) -> Source:
        """What batches are read from."""
        ...

    def stack(self, read: Any, /) -> "Tensor":
        """What a model takes, from what the source has read."""
        ...

    def augmented(self, read: Any, change: "Callable[[Tensor], Tensor]", /, *, is_cropping: bool) -> "Tensor":
        """As `stack`, for training, in which images are changed."""
        ...

    def parts(self, raw: Any, size: int, /) -> Iterator[tuple[Any, Any]]:
        """Places and raw inputs of parts of at most `size`, cut such that each is computed fast."""
        ...

    def crops(self, raw: Any, num: int, /) -> "Tensor":
        """Several views of each input, (n, num, ...), for answers that average over them."""
        ...

    def taken(self) -> Taken:
        """What the model takes, prepared and stacked."""
        ...

    def taken_raw(self, size: tuple[int, int] | None = None, /) -> Taken:
        """What raw inputs are, of images of a size, where the preparation can be part of an exported file."""
        ...

    def steps(self) -> dict[str, Any]:
        """What has to be done to raw inputs, for those who do it without this package: `to_dict` and more."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON knows them."""
        ...

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], /) -> Self:
        """What `to_dict` gave."""
        ...
