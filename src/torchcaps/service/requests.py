"""What may be asked: strict schemas, so that what is wrong is refused before any work is done."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from torchcaps.checks import check_choice
from torchcaps.routing import FunctionRouting, RoutingEntry, find_routing, routing_names
from torchcaps.service.images import MAX_PNG_BYTES

MAX_TEXT = 2000  # characters
MAX_ITERATIONS = 10
MAX_POINTS = 300
MAX_POSE = 2.0  # a pose is at most 1 long
MAX_USED, MAX_RECOMMENDED, MAX_ITEM = 200, 100, 200  # items, items, characters


def offered_routings() -> dict[str, RoutingEntry]:
    """Routings that can be chosen: those whose function can be called without a layer of its own.

    One that only a network trained with it can use says so: its entry has no options for others.
    """
    entries = (find_routing(name) for name in routing_names())
    return {entry.name: entry for entry in entries if issubclass(entry.module, FunctionRouting)}


def _offered(name: str) -> str:
    return check_choice("algorithm", name, offered_routings())


Algorithm = Annotated[
    str,
    AfterValidator(_offered),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(offered_routings()))),
]
ModelName = Annotated[str, Field(max_length=100)]
Png = Annotated[
    str,
    Field(
        max_length=4 * -(-MAX_PNG_BYTES // 3),
        description="a PNG file in base64, at most 1024 x 1024 pixels; two cameras stand side by side",
    ),
]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
ClassIndex = Annotated[int, Field(ge=0, lt=100_000, description="number of a class")]


class Request(BaseModel):
    """A request: nothing unknown, nothing converted, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    model: ModelName | None = Field(
        default=None, description="id of a model, see /api/models; where there is one alone it need not be named"
    )


class InputRequest(Request):
    """About an image or a text, as the model takes it: give exactly one of the two."""

    image: Png | None = None
    text: Text | None = None

    @model_validator(mode="after")
    def has_one_input(self) -> Self:
        """Raise unless there is exactly one input."""
        if (self.image is None) == (self.text is None):
            raise ValueError("give exactly one of image and text")
        return self


class PredictRequest(InputRequest):
    """What is it?"""


class ExplainRequest(InputRequest):
    """Why that class? By default the winner."""

    class_index: ClassIndex | None = None


Used = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_ITEM)]],
    Field(min_length=1, max_length=MAX_USED, description="items that a person used, from the first to the latest"),
]


class RecommendRequest(Request):
    """What else would this person like? What was used is left out."""

    items: Used
    k: Annotated[int, Field(ge=1, le=MAX_RECOMMENDED)] = 20
    diversity: Annotated[float, Field(ge=0, le=1e6, description="what another category is worth")] = 0.0


class InterestsRequest(Request):
    """Which interests does this person have, and what does each recommend by itself?"""

    items: Used
    k: Annotated[int, Field(ge=1, le=MAX_RECOMMENDED)] = 5


class RoutingChoice(BaseModel):
    """A routing of the package; without a number of iterations its default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    algorithm: Algorithm
    num_iterations: Annotated[int, Field(ge=0, le=MAX_ITERATIONS)] | None = None


class TraceRequest(Request):
    """How did routing find it? By default with the model's own routing, showing the three most active classes."""

    image: Png
    routing: RoutingChoice | None = None
    classes: Annotated[list[ClassIndex], Field(min_length=1, max_length=5)] | None = None
    num_points: Annotated[int, Field(ge=1, le=MAX_POINTS)] = 120


class ReconstructRequest(Request):
    """What does a class capsule see? From an image, or from a pose of a class; give exactly one of the two."""

    image: Png | None = None
    pose: Annotated[list[Annotated[float, Field(ge=-MAX_POSE, le=MAX_POSE)]], Field(max_length=1024)] | None = None
    class_index: ClassIndex | None = None

    @model_validator(mode="after")
    def has_one_input(self) -> Self:
        """Raise unless there is exactly one input, and a class with a pose."""
        if (self.image is None) == (self.pose is None):
            raise ValueError("give exactly one of image and pose")
        if self.pose is not None and self.class_index is None:
            raise ValueError("a pose needs the class_index of the class it belongs to")
        return self


class MatchRequest(Request):
    """How alike are two texts, and which of their parts match? For models on a pretrained encoder."""

    text: Text
    other: Text


class PosesRequest(Request):
    """What do the directions of a class's poses mean?"""

    class_index: ClassIndex


class AttackRequest(Request):
    """What change of the pixels makes the model err? Without a class, away from what the model says now."""

    image: Png
    attack: Literal["fgsm", "bim"]
    epsilon: Annotated[float, Field(ge=0, le=1, description="largest change of a pixel; 1 is from black to white")]
    num_steps: Annotated[int, Field(ge=1, le=20, description="of bim")] = 10
    class_index: ClassIndex | None = None
