"""The service with what only the page asks for: roles, examples and toys on a turntable."""

from collections.abc import Mapping

from torchcaps.data.toys.shapes import CATEGORIES
from torchcaps.explorer.examples import find_examples
from torchcaps.explorer.results import Example, ExampleList, Roles, Turned
from torchcaps.explorer.roles import choose_roles
from torchcaps.explorer.turning import TOYS, Reader, fit_reader, turn
from torchcaps.predictor import Predictor
from torchcaps.service.catalogue import abilities
from torchcaps.service.refusals import Refusal
from torchcaps.service.service import Service, timed


class Explorer(Service):
    """Trained models by name, what can be asked of them, and what the page shows of them.

    Args:
        predictors: of images or texts, by name; those that come first take the roles in the page.
        unavailable: reasons why others cannot be used, by name.

    Example:
        >>> from torchcaps.explorer import Explorer
        >>> from torchcaps.service import shipped_models
        >>> explorer = Explorer(*shipped_models())
        >>> len(explorer.examples("capsnet-small-mnist"))
        20
    """

    def __init__(self, predictors: Mapping[str, Predictor], unavailable: Mapping[str, str] | None = None) -> None:
        super().__init__(predictors, unavailable)
        self._examples: dict[str, list[Example]] = {}
        self._readers: dict[tuple[str, str], Reader] = {}

    def roles(self) -> Roles:
        """Which model does what in the page."""
        return choose_roles(self.models().models)

    def examples(self, model: str) -> list[Example]:
        """Examples of test data for a model, always the same ones."""
        predictor = self.find(model, "predict")
        with self._lock:  # read once
            if model not in self._examples:
                self._examples[model] = find_examples(predictor.model)
        return self._examples[model]

    def example_list(self, model: str) -> ExampleList:
        """The examples, and whether they turn."""
        predictor = self.find(model, "predict")
        turns = "tree" in abilities(predictor) and is_of_toys(predictor)
        return ExampleList(model=model, examples=self.examples(model), turns=turns)

    @timed
    def turn(self, model: str, *, toy: int) -> Turned:
        """A toy from all sides, and the sides that a linear map reads from the poses of its class.

        Args:
            model: a matrix network of toys.
            toy: the number of its example.
        """
        predictor = self.find(model, "tree")
        if not is_of_toys(predictor):
            raise Refusal(f"{model} does not know these toys; their classes are {', '.join(CATEGORIES)}")
        if not 0 <= toy < len(TOYS):
            raise Refusal(f"a toy must be between 0 and {len(TOYS) - 1}, got {toy}")
        key = (model, TOYS[toy][0])
        with self._lock:  # fitted once
            if key not in self._readers:
                self._readers[key] = fit_reader(predictor.model, key[1])
        return turn(model, predictor.model, toy, self._readers[key])


def is_of_toys(predictor: Predictor) -> bool:
    """Whether a model knows the categories of toys that can be rendered."""
    return set(predictor.labels) == set(CATEGORIES)
