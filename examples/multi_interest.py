"""Several interests of a person, as in recommendation: what MIND finds in people whose interests are known.

Generated people like one to four groups of items. MIND learns from what they used, and is asked which groups its
interests stand for; with one interest alone it can name one at best.

    python examples/multi_interest.py --epochs 6
"""

import argparse

from torchcaps.data.interactions import generate_people
from torchcaps.retrieval import InterestRecommender, interest_recovery
from torchcaps.training import TrainingConfig


def main(epochs: int) -> None:
    people = generate_people(300, num_items=100, num_groups=10)
    for num_interests in (1, 4):
        recommender = InterestRecommender(
            "mind",
            model_options={"num_interests": num_interests, "item_size": 16},
            training=TrainingConfig(epochs=epochs, batch_size=64, learning_rate=1e-2),
        ).fit(people.interactions)
        recovered = interest_recovery(recommender.model_, people)["recovered"]
        print(
            f"at most {num_interests} interests: recall@20 {recommender.scores_['recall@20']:.2f}, "
            f"{recovered:.2f} of the groups that people like are found"
        )
    user = people.interactions.user_names[0]
    for interest in recommender.explain(user):
        formed = ", ".join(f"{share.item} ({share.coupling:.2f})" for share in interest.formed_by[:4])
        print(f"interest {interest.number + 1} of {user}: {formed}")
    print("recommended:", ", ".join(found.item for found in recommender.recommend([user], k=5)[0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    main(parser.parse_args().epochs)
