"""`torchcaps attack`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from torchcaps.data import ImageSet
    from torchcaps.predictor import Predictor

MOST_CURVES = 5


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Change the pixels of test images until a trained network errs, and tell how much it needs.

    Every pixel may change by epsilon, where 1 is the way from black to white, and stays between black and white; the
    gradient goes through resizing, standardising and cropping. Prints the accuracy at each epsilon and writes a curve.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    methods: tuple[Literal["fgsm", "bim", "pgd"], ...] = ("fgsm", "bim")
    """fgsm: one step along the sign of the gradient; bim: 10 smaller ones; pgd: 40 from a random start."""

    epsilons: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
    """Largest changes of a pixel."""

    targeted: bool = False
    """Go towards every wrong class in turn, and tell the mean share of images that were taken for it."""

    transfer: tuple[str, ...] = ()
    """Show the images made with RUN's gradient to these models too: run folders, saved models or shipped names."""

    loss: Literal["cross_entropy", "own"] = "cross_entropy"
    """What the attack raises: the cross-entropy, or the loss of training, whose gradient may vanish."""

    num_images: int = 200
    """Test images, at most; every class in its share."""

    data: str | None = None
    """Name or path of the dataset; by default the one of the run."""

    seed: int = 0
    """Of random starts."""

    out: Path = Path("attack.png")
    """Picture of the curves."""

    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        """Attack, print a table, write the curves."""
        from torchcaps.attacks import gradient_statistics
        from torchcaps.checks import check_count
        from torchcaps.data import choose_some
        from torchcaps.environment import environment
        from torchcaps.predictor import load

        check_count("--num-images", self.num_images)
        if not self.epsilons or not self.methods:
            raise ValueError("give at least one of --epsilons and of --methods")
        if len(self.methods) * (1 + len(self.transfer)) > MOST_CURVES:
            raise ValueError(
                f"{len(self.methods)} methods shown to {1 + len(self.transfer)} models are too many to tell apart in a "
                f"picture of {MOST_CURVES} curves; give fewer of --methods or --transfer"
            )
        predictor = load(self.run_folder)
        part = choose_some(self.test_part(predictor), self.num_images, 0)
        victims = {self.run_folder: predictor.model} | {name: load(name).model for name in self.transfer}
        for name, victim in victims.items():
            if victim.labels != predictor.labels:
                raise ValueError(f"{name} knows other classes than {self.run_folder}")
        result: dict[str, Any] = {
            "model": predictor.model.name,
            "images": len(part),
            "targeted": self.targeted,
            "loss": self.loss,
            "outcomes": self.outcomes(predictor, victims, part),
            "gradient": gradient_statistics(predictor.model, part.images, part.labels, loss=self.loss)._asdict(),
            "figure": str(self.out),
            "environment": environment(),
        }
        self.draw(result)
        if self.json:
            print(json.dumps(result))
        else:
            self.report(result)

    def test_part(self, predictor: "Predictor") -> "ImageSet":
        """The images to attack."""
        from torchcaps.attacks.perturb import check_attackable
        from torchcaps.cli.evaluate import Evaluate, load_part
        from torchcaps.data import ImageSet

        check_attackable(predictor.model)
        name, columns = Evaluate(run_folder=self.run_folder, data=self.data).source(predictor.model.card)
        part, _ = load_part(name, columns, predictor.model, is_asked_for=self.data is not None)
        assert isinstance(part, ImageSet)
        if part.is_multi_label:
            raise ValueError(f"an attack needs one class for each image; {name} has several")
        return part

    def outcomes(self, predictor: "Predictor", victims: dict[str, Any], part: "ImageSet") -> list[dict[str, Any]]:
        """One entry for each method, model and epsilon."""
        from torchcaps.attacks import transfer

        found = []
        for method in dict.fromkeys(self.methods):
            by_name = transfer(
                predictor.model,
                victims,
                part.images,
                part.labels,
                epsilons=self.epsilons,
                method=method,
                targeted=self.targeted,
                loss=self.loss,
                seed=self.seed,
            )
            found += [
                {"method": method, "shown_to": name} | outcome._asdict()
                for name, outcomes in by_name.items()
                for outcome in outcomes
            ]
        return found

    def draw(self, result: dict[str, Any]) -> None:
        """Write the picture."""
        from torchcaps.viz.attack_curves import AttackCurve, attack_curves

        curves = [
            AttackCurve(
                heading,
                [outcome["epsilon"] for outcome in outcomes],
                [outcome["accuracy"] for outcome in outcomes],
                result["images"],
            )
            for heading, outcomes in by_curve(result["outcomes"], self.run_folder).items()
        ]
        kind = "Targeted attacks" if self.targeted else "Attacks"
        self.out.parent.mkdir(parents=True, exist_ok=True)
        attack_curves(curves, title=f"{kind} on {self.run_folder}").savefig(self.out, dpi=150)

    def report(self, result: dict[str, Any]) -> None:
        """Print the table and what the gradient looks like."""
        from rich.console import Console
        from rich.table import Table

        measured = "success" if self.targeted else "accuracy"
        curves, console = by_curve(result["outcomes"], self.run_folder), Console(highlight=False)
        table = Table("epsilon", title=f"{measured} of {'targeted ' if self.targeted else ''}attacks, %")
        for heading in curves:
            table.add_column(heading, justify="right")
        for place, epsilon in enumerate(self.epsilons):
            shares = [100 * outcomes[place][measured] for outcomes in curves.values()]
            table.add_row(f"{epsilon:g}", *(f"{share:.1f}" for share in shares))
        console.print(table)
        gradient = result["gradient"]
        console.print(
            f"{result['images']} test images; gradient of a pixel: mean size {gradient['magnitude']:.2g}, "
            f"exactly zero for {100 * gradient['zero_share']:.1f} % "
            f"(in {100 * gradient['zero_image_share']:.1f} % of the images for all)",
            soft_wrap=True,
        )
        console.print(f"figure: {self.out}", soft_wrap=True)


def by_curve(outcomes: list[dict[str, Any]], source: str) -> dict[str, list[dict[str, Any]]]:
    """The outcomes of each method and model, under a heading."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        shown = "" if outcome["shown_to"] == source else f", shown to {outcome['shown_to']}"
        curves.setdefault(outcome["method"] + shown, []).append(outcome)
    return curves
