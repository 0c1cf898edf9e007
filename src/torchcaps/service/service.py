"""What can be asked, without the web: models by name, and questions about one image or text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from threading import Lock
from time import perf_counter
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchcaps.attacks import METHODS, perturb
from torchcaps.capsules import Capsules
from torchcaps.inspection import decoder_of
from torchcaps.models import ModelOutput, Recommender
from torchcaps.predictor import Predictor
from torchcaps.service.catalogue import abilities, list_models
from torchcaps.service.matching import match_texts, sentence_encoder
from torchcaps.service.posing import directions
from torchcaps.service.questions import QUESTIONS, Image, check_one, read_question
from torchcaps.service.recommending import check_items, form_interests, list_items, recommend_items
from torchcaps.service.refusals import Refusal, UnknownModel
from torchcaps.service.requests import RoutingChoice
from torchcaps.service.results import (
    Ability,
    Answer,
    Attacked,
    Explanation,
    ItemList,
    Matched,
    ModelList,
    PoseDirections,
    Prediction,
    Recommendations,
    Recommending,
    Reconstruction,
    Result,
    Trace,
)
from torchcaps.service.tracing import trace
from torchcaps.text import CapsuleSentenceEncoder

Arguments = ParamSpec("Arguments")
Kind = TypeVar("Kind", bound=Result)


def timed(method: Callable[Arguments, Kind]) -> Callable[Arguments, Kind]:
    """Write into the result how long it took."""

    @wraps(method)
    def work(*arguments: Arguments.args, **options: Arguments.kwargs) -> Kind:
        start = perf_counter()
        result = method(*arguments, **options)
        result.milliseconds = round(1000 * (perf_counter() - start), 3)
        return result

    return work


class Service:
    """Trained models by name, and what can be asked of them; safe to be used by several threads.

    What is wrong with a question is said by a `Refusal`, which is a ValueError.

    Args:
        predictors: of images or texts, by name.
        unavailable: reasons why others cannot be used, by name.

    Example:
        >>> from torchcaps.service import Service, shipped_models
        >>> service = Service(*shipped_models())
        >>> service.predict("capsnet-small-mnist", image=np.zeros((28, 28), np.uint8)).scores.shape
        (10,)
    """

    def __init__(self, predictors: Mapping[str, Predictor], unavailable: Mapping[str, str] | None = None) -> None:
        self.predictors, self.unavailable = dict(predictors), dict(unavailable or {})
        self._directions: dict[tuple[str, int], PoseDirections] = {}
        self._sentences: dict[str, CapsuleSentenceEncoder] = {}
        self._lock = Lock()

    def models(self) -> ModelList:
        """All models, and what each can do."""
        return list_models(self.predictors, self.unavailable)

    def warm_up(self) -> None:
        """Ask every model once, so that the first question of a user is answered as fast as the next."""
        for predictor in self.predictors.values():
            predictor.answer(QUESTIONS[predictor.kind].try_out(predictor.model.preprocessing))

    @timed
    def predict(self, model: str, *, image: Image | None = None, text: str | None = None) -> Prediction:
        """What a model says about an image or a text."""
        predictor = self.find(model, "predict")
        output = predictor.answer(read_question(predictor, image=image, text=text))
        return Prediction(model=model, **dict(answer(predictor, output)))

    @timed
    def explain(
        self, model: str, *, image: Image | None = None, text: str | None = None, class_index: int | None = None
    ) -> Explanation:
        """Where in the image, or from which words, the votes for a class come; by default for the winner."""
        predictor = self.find(model, "explain")
        raw = read_question(predictor, image=image, text=text)
        has_tree = "tree" in abilities(predictor)
        output, tell = QUESTIONS[predictor.kind].explain(predictor, raw, has_tree=has_tree)
        said = answer(predictor, output)
        chosen = self.check_class(predictor, said.best if class_index is None else class_index)
        return Explanation(
            model=model,
            class_index=chosen,
            label=predictor.labels[chosen],
            score=round(float(said.scores[chosen]), 6),
            **tell(chosen),
        )

    @timed
    def trace(
        self,
        model: str,
        *,
        image: Image,
        routing: RoutingChoice | None = None,
        classes: Sequence[int] | None = None,
        num_points: int = 120,
    ) -> Trace:
        """How the routing of an image into the classes went on; see `torchcaps.service.tracing`."""
        predictor = self.find(model, "trace")
        for chosen in classes or ():
            self.check_class(predictor, chosen)
        if classes is not None and len(set(classes)) != len(classes):
            raise Refusal(f"classes must be different ones, got {list(classes)}")
        prepared_CHW = predictor.model.preprocessing(read_question(predictor, image=image))[0]
        return trace(model, predictor.model, prepared_CHW, choice=routing, classes=classes, num_points=num_points)

    @timed
    @torch.inference_mode()
    def reconstruct(
        self,
        model: str,
        *,
        image: Image | None = None,
        pose: Sequence[float] | None = None,
        class_index: int | None = None,
    ) -> Reconstruction:
        """What is decoded from the pose of a class: the one it has for an image, or the given one."""
        predictor = self.find(model, "reconstruct")
        decoder = decoder_of(predictor.model)
        device = next(predictor.model.parameters()).device
        check_one(image=image, pose=pose)
        if pose is None:
            output = predictor.answer(read_question(predictor, image=image))
            assert output.poses is not None
            chosen = self.check_class(predictor, int(output.scores.argmax()) if class_index is None else class_index)
            poses_1JD = output.poses
        else:
            if class_index is None:
                raise Refusal("a pose needs the class_index of the class it belongs to")
            if len(pose) != decoder.in_size:
                raise Refusal(f"a pose of {model} has {decoder.in_size} entries, got {len(pose)}")
            chosen = self.check_class(predictor, class_index)
            poses_1JD = torch.zeros(1, decoder.in_capsules, decoder.in_size, device=device)
            poses_1JD[0, chosen] = torch.tensor(pose)
        decoded_CHW = decoder(Capsules.from_poses(poses_1JD), torch.tensor([chosen], device=device))[0]
        return Reconstruction(
            model=model,
            class_index=chosen,
            label=predictor.labels[chosen],
            pose=poses_1JD[0, chosen].cpu().numpy(),
            length=float(poses_1JD[0, chosen].norm()),
            reconstruction=to_bytes(decoded_CHW),
        )

    @timed
    def poses(self, model: str, *, class_index: int) -> PoseDirections:
        """What the directions of a class's poses change, found once from test images."""
        predictor = self.find(model, "reconstruct")
        key = (model, self.check_class(predictor, class_index))
        with self._lock:
            if key not in self._directions:
                self._directions[key] = directions(model, predictor.model, class_index)
        return self._directions[key].model_copy()

    @timed
    def attack(
        self,
        model: str,
        *,
        image: Image,
        attack: str,
        epsilon: float,
        num_steps: int = 10,
        class_index: int | None = None,
    ) -> Attacked:
        """Change pixels by at most epsilon, of 1 from black to white, so that the model errs; in 8 bits, as shown.

        Args:
            model: whose gradient is used and whose answer shall change.
            image: to start from.
            attack: "fgsm" or "bim".
            epsilon: in [0, 1].
            num_steps: of bim.
            class_index: the true class; by default what the model says now.
        """
        predictor = self.find(model, "attack")
        raw_1HWC = read_question(predictor, image=image)
        before = answer(predictor, predictor.answer(raw_1HWC))
        chosen = self.check_class(predictor, before.best if class_index is None else class_index)
        method = METHODS[attack]
        if attack == "bim":
            method = replace(method, num_steps=num_steps, relative_step=min(2 / num_steps, 1.0))
        changed_1HWC = perturb(predictor.model, raw_1HWC, np.array([chosen]), epsilon=epsilon, method=method)
        # in whole levels towards the original, so that no pixel leaves epsilon
        delta_1HWC = np.fix((255 * changed_1HWC.astype(np.float64) - raw_1HWC).round(3))
        perturbed_1HWC = (raw_1HWC + delta_1HWC).astype(np.uint8)
        after = answer(predictor, predictor.answer(perturbed_1HWC))
        shown = 128 + 127 * delta_1HWC[0] / max(255 * epsilon, 1.0)
        return Attacked(
            model=model,
            attack=attack,
            epsilon=epsilon,
            class_index=chosen,
            before=before,
            after=after,
            succeeded=after.best != chosen,
            perturbed=perturbed_1HWC[0],
            difference=shown.round().astype(np.uint8),
        )

    @timed
    def match(self, model: str, *, text: str, other: str) -> Matched:
        """How alike two texts are to the encoder of a model, and which of their parts match."""
        found = self.find(model, "match").model
        with self._lock:  # its tokenizer is read once
            if model not in self._sentences:
                self._sentences[model] = sentence_encoder(found)
        return match_texts(model, self._sentences[model], text, other)

    @timed
    def recommend(self, model: str, *, items: Sequence[str], k: int = 20, diversity: float = 0.0) -> Recommendations:
        """What fits somebody who used these items."""
        known = self.recommender(model, "recommend")
        return recommend_items(model, known, [check_items(known, items)], k=k, diversity=diversity)[0]

    @timed
    def interests(self, model: str, *, items: Sequence[str], k: int = 5) -> Recommending:
        """How the interests of somebody who used these items formed, and what each recommends by itself."""
        known = self.recommender(model, "interests")
        return form_interests(model, known, check_items(known, items), k=k)

    @timed
    def items(self, model: str, *, search: str = "") -> ItemList:
        """Items of a recommender whose name has these letters, the most used first."""
        return list_items(model, self.recommender(model, "recommend"), search)

    def recommender(self, model: str, ability: Ability) -> Recommender:
        """The model of people that can do something."""
        found = self.find(model, ability).model
        assert isinstance(found, Recommender)
        return found

    def name_of(self, model: str | None) -> str:
        """The name of a model: the one that was given, or that of the only one."""
        if model is not None:
            return model
        if len(self.predictors) != 1:
            raise Refusal(f"say which model is asked; there are: {', '.join(self.predictors) or 'none'}")
        return next(iter(self.predictors))

    def find(self, model: str, ability: Ability) -> Predictor:
        """The predictor of a model that can do something."""
        predictor = self.predictors.get(model)
        if predictor is None:
            known = ", ".join(self.predictors) or "none"
            raise UnknownModel(f"there is no model of that name; there are: {known}")
        if ability not in abilities(predictor):
            able = [name for name, other in self.predictors.items() if ability in abilities(other)]
            raise Refusal(f"{model} cannot {ability}; models that can: {', '.join(able) or 'none'}")
        return predictor

    @staticmethod
    def check_class(predictor: Predictor, chosen: int) -> int:
        """The number of a class, if there is one."""
        if not 0 <= chosen < len(predictor.labels):
            raise Refusal(f"a class must be between 0 and {len(predictor.labels) - 1}, got {chosen}")
        return chosen


def answer(predictor: Predictor, output: ModelOutput) -> Answer:
    """What a model says about the first of a batch."""
    return answers(predictor, output)[0]


def answers(predictor: Predictor, output: ModelOutput) -> list[Answer]:
    """What a model says about each of a batch."""
    probabilities_BJ = predictor.model.task.estimate(output).float().cpu().numpy()
    scores_BJ = output.scores.float().cpu().numpy() if predictor.model.gives_activations else probabilities_BJ
    return [
        Answer(scores=scores, probabilities=probabilities, best=best, label=predictor.labels[best])
        for scores, probabilities, best in zip(scores_BJ, probabilities_BJ, scores_BJ.argmax(1).tolist(), strict=True)
    ]


def to_bytes(image_CHW: Tensor) -> np.ndarray:
    """An image between 0 and 1 as uint8 (h, w, c)."""
    return (255 * image_CHW.clamp(0, 1)).round().byte().permute(1, 2, 0).cpu().contiguous().numpy()
