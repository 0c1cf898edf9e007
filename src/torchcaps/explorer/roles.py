"""Which model does what in the page."""

from torchcaps.explorer.results import Roles
from torchcaps.service.results import ModelCard


def choose_roles(cards: list[ModelCard]) -> Roles:
    """The first model for each role."""

    def first(*wanted: bool) -> str | None:
        return next((found.id for found, is_fit in zip(cards, wanted, strict=True) if is_fit), None)

    capsules = first(*("trace" in found.abilities and "reconstruct" in found.abilities for found in cards))
    lead = next((found for found in cards if found.id == capsules), None)
    return Roles(
        capsules=capsules,
        rival=first(
            *(
                lead is not None
                and found.routing is None
                and "attack" in found.abilities
                and (found.labels, found.input) == (lead.labels, lead.input)
                for found in cards
            )
        ),
        matrix=first(*("tree" in found.abilities for found in cards)),
        english=first(*(found.language == "en" and "explain" in found.abilities for found in cards)),
        chinese=first(*(found.language == "zh" and "explain" in found.abilities for found in cards)),
        recommender=first(*("interests" in found.abilities for found in cards)),
    )
