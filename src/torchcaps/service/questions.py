"""How a question about an image differs from one about a text: one object for each kind of input."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from torchcaps.inputs.histories import HistoryEncoding
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import TextEncoding
from torchcaps.inputs.tokens import TextInputs
from torchcaps.inspection import WordRouting, find_routes
from torchcaps.inspection.words import named
from torchcaps.models import ModelOutput
from torchcaps.predictor import Predictor
from torchcaps.service.explaining import places_of, tree_of
from torchcaps.service.images import raw_picture
from torchcaps.service.refusals import Refusal
from torchcaps.service.requests import MAX_TEXT
from torchcaps.service.results import ImageSize, Word

Tell = Callable[[int], dict[str, Any]]  # from a class to fields of an Explanation
Image = np.ndarray | bytes  # uint8 (h, w) or (h, w, c), or a PNG file


class Questions(Protocol):
    """What the service does for one kind of input."""

    def read(self, inputs: Any, /, *, image: Image | None = None, text: str | None = None) -> Any:
        """Raw inputs of a batch of one, from what was sent; `inputs` are the model's."""
        ...

    def join(self, raws: Sequence[Any], /) -> Any:
        """Raw inputs of one batch, from batches of one."""
        ...

    def try_out(self, inputs: Any, /) -> Any:
        """Raw inputs of a batch of one that every model can answer."""
        ...

    def card(self, inputs: Any, /) -> dict[str, Any]:
        """What the card of a model says about its inputs."""
        ...

    def explain(self, predictor: Predictor, raw: Any, /, *, has_tree: bool) -> tuple[ModelOutput, Tell]:
        """What the model says and, from the same forward pass, what in the input speaks for a class."""
        ...


class ImageQuestions:
    """About a picture."""

    def read(self, inputs: Preprocessing, *, image: Image | None = None, text: str | None = None) -> np.ndarray:
        """A picture in the channels and size of the model's raw images: uint8 (1, h, w, c)."""
        if image is None:
            raise Refusal("this model takes an image, not a text")
        return raw_picture(image, inputs)[None]

    def join(self, raws: Sequence[np.ndarray]) -> np.ndarray:
        """Pictures of one size."""
        return np.concatenate(raws)

    def try_out(self, inputs: Preprocessing) -> np.ndarray:
        """A black picture."""
        return self.read(inputs, image=np.zeros((28, 28, inputs.channels), np.uint8))

    def card(self, inputs: Preprocessing) -> dict[str, Any]:
        """The size of raw images."""
        height, width = inputs.image_size
        size = ImageSize(channels=inputs.channels, height=height, width=width)
        return {"kind": "image", "input": size, "language": None}

    def explain(self, predictor: Predictor, raw: np.ndarray, *, has_tree: bool) -> tuple[ModelOutput, Tell]:
        """Places of the image and, of a model that has one, the parse tree."""
        try:
            routes = find_routes(predictor.model, predictor.model.preprocessing(raw)[0], return_trace=True)
        except ValueError as error:  # of a model of a user's own, which may not tell all that is asked for
            raise Refusal(str(error)) from error

        def tell(class_index: int) -> dict[str, Any]:
            try:
                tree = tree_of(routes, class_index) if has_tree else None
                return {"places": places_of(routes, class_index), "tree": tree}
            except ValueError as error:
                raise Refusal(str(error)) from error

        return routes.output, tell


class TextQuestions:
    """About a text."""

    def read(self, inputs: TextInputs, *, image: Image | None = None, text: str | None = None) -> list[str]:
        """The text, of which nothing is left out."""
        if text is None:
            raise Refusal("this model takes a text, not an image")
        if len(text) > MAX_TEXT:
            raise Refusal(f"a text must have at most {MAX_TEXT} characters, got {len(text)}")
        num_tokens = inputs.num_tokens_of(text)
        if num_tokens == 0:
            raise Refusal("the text has no words")
        if num_tokens > inputs.max_length:
            raise Refusal(f"this model reads at most {inputs.max_length} words and signs, got {num_tokens}")
        return [text]

    def join(self, raws: Sequence[list[str]]) -> list[str]:
        """All texts."""
        return [text for raw in raws for text in raw]

    def try_out(self, inputs: TextInputs) -> list[str]:
        """A word; the tokeniser may need another package."""
        return self.read(inputs, text="text")

    def card(self, inputs: TextInputs) -> dict[str, Any]:
        """The language of the vocabulary."""
        return {"kind": "text", "input": None, "language": inputs.language}

    def explain(self, predictor: Predictor, raw: list[str], *, has_tree: bool) -> tuple[ModelOutput, Tell]:
        """What each word says."""
        words = WordRouting(predictor.model, predictor.model.preprocessing(raw))

        def tell(class_index: int) -> dict[str, Any]:
            reasons = named(predictor.model, raw[0], words.values([class_index])[0])
            return {"words": [Word(word=word, value=round(value, 6)) for word, value in reasons]}

        return words.output, tell


class UserQuestions:
    """About a person: what is asked is in `torchcaps.service.recommending`."""

    def read(self, inputs: HistoryEncoding, *, image: Image | None = None, text: str | None = None) -> NoReturn:
        """Refused."""
        raise Refusal("this model takes the items that a person used; ask /api/recommend")

    def join(self, raws: Sequence[list[list[str]]]) -> list[list[str]]:
        """All people."""
        return [history for raw in raws for history in raw]

    def try_out(self, inputs: HistoryEncoding) -> list[list[str]]:
        """Somebody who used the first item."""
        return [[inputs.items[0]]]

    def card(self, inputs: HistoryEncoding) -> dict[str, Any]:
        """Items are asked for by /api/items: there may be very many."""
        return {"kind": "user", "input": None, "language": None, "labels": []}

    def explain(self, predictor: Predictor, raw: list[list[str]], *, has_tree: bool) -> NoReturn:
        """Refused."""
        raise Refusal("how the interests of a person formed is told by /api/interests")


QUESTIONS: dict[str, Questions] = {
    Preprocessing.kind: ImageQuestions(),
    TextEncoding.kind: TextQuestions(),
    HistoryEncoding.kind: UserQuestions(),
}


def check_one(**inputs: object) -> None:
    """Raise unless exactly one is given."""
    if sum(value is not None for value in inputs.values()) != 1:
        raise Refusal(f"give exactly one of {' and '.join(inputs)}")


def read_question(predictor: Predictor, **given: Any) -> Any:
    """Raw inputs of a batch of one, from an image or a text."""
    check_one(**given)
    return QUESTIONS[predictor.kind].read(predictor.model.preprocessing, **given)
