"""How well does a healed sentence encoder match the softmax encoder that it was made from?

    python -m research.conversions.embeddings --data-dir DATA --model MINILM
    python -m research.conversions.embeddings --data-dir DATA --model MINILM --healed FOLDER

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, the healed encoder by default
model_cards/minilm-tanhmax, and DATA has ag_news/test.parquet with titles and 20news_sports/bydate_{train,test}.parquet.
None of these texts was used in healing, except the training posts of 20 Newsgroups. Each encoder becomes a row of
results/embeddings.csv; `make tables` makes the table.

encoders:
  softmax       MINILM
  swapped       MINILM with TanhMax at once
  healed        the healed encoder
  positive      the healed encoder, its negative coefficients set to 0
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame, Series, read_parquet
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm import tqdm

from benchmarks.runs import listing
from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from research.runs import ROOT, command_line, run_grid

FILE = Path(__file__).with_name("results") / "embeddings.csv"
ENCODERS = ("softmax", "swapped", "healed", "positive")
PAIRS, SAMPLED = 20_000, 64  # random pairs of texts; texts whose coefficients are counted
COLUMNS = {  # of the table: heading and format
    "encoder": ("encoder", "{}"),
    "found": ("descriptions found", "{:.1%}"),
    "related": ("relatedness", "{:.3f}"),
    "same_group": ("newsgroup of the nearest post", "{:.1%}"),
    "news_agreement": ("agreement, news", "{:.3f}"),
    "test_agreement": ("agreement, posts", "{:.3f}"),
    "negative_share": ("negative coefficients", "{:.0%}"),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--model", required=True, help="the softmax encoder, a folder or a name on the Hub")
    parser.add_argument("--healed", type=Path, default=ROOT / "model_cards/minilm-tanhmax")
    parser.add_argument("--only", nargs="+", choices=ENCODERS, default=list(ENCODERS), metavar="ENCODER")
    options = parser.parse_args()
    files = {
        "news": options.data_dir / "ag_news/test.parquet",
        "train": options.data_dir / "20news_sports/bydate_train.parquet",
        "test": options.data_dir / "20news_sports/bydate_test.parquet",
    }
    texts = {name: read_parquet(file) for name, file in files.items()}

    @cache
    def teacher() -> dict[str, Tensor]:
        with opened("softmax", options.model, options.healed) as model:
            return embedded(model, texts)

    def run(encoder: str) -> tuple[dict[str, Any], list[Path]]:
        if encoder == "softmax":
            return measured(teacher(), texts) | {"negative_share": 0.0}, list(files.values())
        with opened(encoder, options.model, options.healed) as model:
            vectors = embedded(model, texts)
            inputs = model.tokenize(texts["news"]["text"][:SAMPLED].tolist())
            numbers = {"negative_share": negative_share(model[0].model, [dict(inputs)])}
        for name in ("news", "test"):
            numbers[f"{name}_agreement"] = agreement(vectors[name], teacher()[name])
        return measured(vectors, texts) | numbers, list(files.values())

    run_grid(FILE, [{"encoder": name} for name in options.only], run)


@contextmanager
def opened(encoder: str, softmax: str, healed: Path) -> Iterator[SentenceTransformer]:
    """One of `ENCODERS`, from the folders of the softmax model and of the healed one."""
    model = SentenceTransformer(str(softmax if encoder in ENCODERS[:2] else healed), device="cpu").float()
    if encoder == "swapped":
        model[0].model = signed(model[0].model, 1.0)
    with without_negatives(model[0].model) if encoder == "positive" else nullcontext():
        yield model


def embedded(model: SentenceTransformer, texts: dict[str, DataFrame]) -> dict[str, Tensor]:
    """Unit vectors `[texts, features]` of the texts of each table, by its name, and of the titles of news."""
    columns = {name: table["text"] for name, table in texts.items()} | {"titles": texts["news"]["title"]}
    return {
        name: torch.tensor(model.encode(column.tolist(), normalize_embeddings=True))
        for name, column in tqdm(columns.items(), leave=False)
    }


def measured(vectors: dict[str, Tensor], texts: dict[str, DataFrame]) -> dict[str, float]:
    """Scores in three tasks.

    Returns:
        found: the share of news titles whose nearest description is their own.
        related: see `related`.
        same_group: the share of test posts whose nearest training post is of the same newsgroup.
    """
    news, nearest = texts["news"], (vectors["titles"] @ vectors["news"].T).argmax(1)
    right = news["text"].to_numpy()[nearest] == news["text"].to_numpy()  # a few descriptions occur twice
    same = texts["train"]["label"].to_numpy()[(vectors["test"] @ vectors["train"].T).argmax(1)]
    return {
        "found": right.mean(),
        "related": related(vectors, news["label"]),
        "same_group": (same == texts["test"]["label"].to_numpy()).mean(),
    }


def related(vectors: dict[str, Tensor], topics: Series) -> float:
    """Spearman's correlation of the cosine of a title and a description with their relation: 2 if they are of one
    article, 1 of one topic, 0 of two topics; as many pairs of each."""
    rng, topic = np.random.default_rng(0), topics.to_numpy()
    first, second = rng.integers(len(topic), size=(2, PAIRS))
    second[::3] = first[::3]
    kinds = (topic[first] == topic[second]).astype(int) + (first == second)
    fewest = np.bincount(kinds).min()
    chosen = np.concatenate([np.flatnonzero(kinds == kind)[:fewest] for kind in range(3)])
    cosines = (vectors["titles"][first[chosen]] * vectors["news"][second[chosen]]).sum(1)
    return spearmanr(cosines, kinds[chosen]).statistic


def agreement(ours: Tensor, theirs: Tensor) -> float:
    """Spearman's correlation between the cosines that two encoders give to the same random pairs of texts."""
    first, second = torch.randint(len(ours), (2, PAIRS), generator=torch.Generator().manual_seed(0))
    return spearmanr(*((x[first] * x[second]).sum(1) for x in (ours, theirs))).statistic


def table(runs: DataFrame) -> str:
    """One row an encoder."""
    return listing(runs.sort_values("encoder", key=lambda names: names.map(ENCODERS.index)), COLUMNS)


if __name__ == "__main__":
    main()
