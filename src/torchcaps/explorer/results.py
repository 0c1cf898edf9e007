"""What only the page asks for."""

from pydantic import BaseModel

from torchcaps.service.results import Picture


class Roles(BaseModel):
    """Which model does what in the page."""

    capsules: str | None
    rival: str | None
    matrix: str | None
    english: str | None
    chinese: str | None


class Example(BaseModel):
    """An image or a text of the test data with its true class."""

    label: str
    image: Picture | None = None
    text: str | None = None


class ExampleList(BaseModel):
    """Examples for a model, always the same."""

    model: str
    examples: list[Example]
