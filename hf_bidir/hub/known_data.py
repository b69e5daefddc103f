"""The data sets of the project's checkpoints: names on the Hub, languages and contents of each file."""

import re
from dataclasses import dataclass
from typing import Any

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class DataSet:
    """A data set in a card; `language` is None for images, `hub_name` None if it is not on the Hub."""

    title: str
    hub_name: str | None = None
    language: str | None = None


SST2 = DataSet("SST-2", "stanfordnlp/sst2", "en")
IMDB = DataSet("IMDB", "stanfordnlp/imdb", "en")
FASHION_MNIST = DataSet("Fashion-MNIST", "zalando-datasets/fashion_mnist")
DIGITS = DataSet("scikit-learn digits")
BY_NAME = {"digits": DIGITS} | {known.hub_name: known for known in (SST2, IMDB, FASHION_MNIST)}
FILES = {  # by SHA-256, because a file name such as train.parquet identifies nothing
    "c0245b490253f8664e0175b103850df7ca5136120c3dc3481add70b612e952a3": (
        SST2,
        "training split, the 6,920 whole sentences of the treebank without the phrases that the Hub's split adds",
    ),
    "537fc242f14fa0cea3713ccfd0547161a74adf3c2cec719324725e0d622d57b7": (SST2, "validation split, 872 sentences"),
    "5e226daac19dcb78a8bcc96f15cd4bfc021b2c1304b4c37ef9999049279b3abe": (
        SST2,
        "test split, 1,821 sentences with the treebank's labels, which the Hub's test split hides",
    ),
    "ee2ab3141922112b63346ef2c5de920c10f1e95b7c7fd7ce15b6976ad18ffaa4": (IMDB, "training split, 25,000 reviews"),
    "fa0c755c9068811d6ffcd2b14a5aa01a88896e8a689b79594270dfd50a73ca5a": (IMDB, "test split, 25,000 reviews"),
    "a26751d72d89606ffbfdd4dd5d16911f01e93a7ff4783c95da7307a073d79fa7": (
        FASHION_MNIST,
        "training split, 60,000 images",
    ),
    "78cb45a589ec14266eab4ac0cb2e9e10a4c076ae2d337fe86383d761bff83f32": (FASHION_MNIST, "test split, 10,000 images"),
}


def data_sets(part: dict[str, Any]) -> list[DataSet]:
    """The known data sets of a split; empty if only a file name is known.

    Args:
        part: an entry of run.json's `data`, with `source` and, for files, `sha256`.
    """
    if "sha256" in part:
        found = [FILES[digest][0] for digest in part["sha256"].split(", ") if digest in FILES]
        return list(dict.fromkeys(found))
    source = part.get("source", "")
    if source in BY_NAME:
        return [BY_NAME[source]]
    return [DataSet(source, source)] if HUB_NAME.fullmatch(source) else []


def description(part: dict[str, Any]) -> str:
    """The source of a split: "SST-2 test split, 1,821 sentences …", or else the name of the file or data set."""
    digests = part.get("sha256", "").split(", ")
    known = [FILES[digest] for digest in digests if digest in FILES]
    if len(known) == len(digests):
        return " and ".join(f"{data_set.title} {content}" for data_set, content in known)
    if part.get("source") == "digits":
        return f"scikit-learn digits, {part.get('rows', 0):,} of the 1,797 images"
    return part.get("source", "not named")


def measured_on(run: dict[str, Any], split: str) -> str:
    """The data of the scores of a run; empty if the run has no such split."""
    part = run.get("data", {}).get(split)
    if not part:
        return ""
    size = run.get("recipe", {}).get("block_size")
    return (f"{part['rows']:,} blocks of {size} tokens from the " if size else "") + description(part)


def files(part: dict[str, Any]) -> str:
    """The files of a split with the beginning of each SHA-256; empty for a data set from the Hub."""
    digests = part.get("sha256", "").split(", ")
    names = part.get("source", "").split(", ")
    if digests == [""] or len(digests) != len(names):
        return ""
    return ", ".join(f"{name} (sha256 `{digest[:12]}…`)" for name, digest in zip(names, digests, strict=True))
