"""The service with what only the page asks for: roles and examples."""

from collections.abc import Mapping

from torchcaps.explorer.examples import find_examples
from torchcaps.explorer.results import Example, Roles
from torchcaps.explorer.roles import choose_roles
from torchcaps.predictor import Predictor
from torchcaps.service.service import Service


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
