"""What only the page asks for."""

from pydantic import BaseModel

from torchcaps.service.results import Picture, Result


class Roles(BaseModel):
    """Which model does what in the page."""

    capsules: str | None
    rival: str | None
    matrix: str | None
    english: str | None
    chinese: str | None
    recommender: str | None


class Example(BaseModel):
    """An image or a text of the test data with its true class."""

    label: str
    image: Picture | None = None
    text: str | None = None


class ExampleList(BaseModel):
    """Examples for a model, always the same; `turns` if they are toys that /api/turn shows from all sides."""

    model: str
    examples: list[Example]
    turns: bool


class Side(BaseModel):
    """A toy from one side: where it is shown from and what is read from its pose, in degrees from 0 to 360."""

    azimuth: float
    found: float
    image: Picture


class Turned(Result):
    """A toy from all sides; `degrees_off` is the mean distance between shown and read sides, 90 for guesses."""

    toy: int
    label: str
    sides: list[Side]
    degrees_off: float
