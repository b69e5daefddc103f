"""Generate synthetic data as parquet files: the texts of the TanhMax paper, or pairs for an encoder-decoder.

  small    10,000 texts of 2,000 words, two of which determine the class
  large    50,000 texts of 10,000 words
  sorting  54,000 rows of eight numbers, and the same sorted
  dates    24,000 dates in eight formats, and as 1998-03-05
  sorting-20, sorting-40, sorting-80   12,000 rows of five numbers in a text of 20, 40 or 80 words
  dates-20, dates-40, dates-80         12,000 dates in a text of 20, 40 or 80 words

examples:
  python -m research.mechanisms.data small runs/synthetic
  python training/recurrent_classification.py --output_dir runs/polar --train_file runs/synthetic/train.parquet \\
      --validation_file runs/synthetic/validation.parquet --test_file runs/synthetic/test.parquet

  python -m research.mechanisms.data sorting runs/sorting
  python training/seq2seq.py training/recipes/sorting-rnn-tanhmax.yaml
"""

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from hf_bidir.finetune.data.sources import read_digits, read_table
from research.runs import command_line
from research.synthetic import SETS, write_splits

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
ORDINALS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
FORMATS = (
    "{0.day} {0:%B} {0.year}",
    "{0:%B} {0.day}, {0.year}",
    "the {0.day}{ordinal} of {0:%B} {0.year}",
    "{0:%A}, {0:%B} {0.day}, {0.year}",
    "{0:%a} {0.day} {0:%b} {0.year}",
    "{0:%d}.{0:%m}.{0.year}",
    "{0:%m}/{0:%d}/{0.year}",
    "{0.day}-{0:%b}-{0.year}",
)
FILLERS = [f"word{number}" for number in range(100)]
LENGTHS = (20, 40, 80)


@dataclass(frozen=True)
class Pairs:
    """The number of rows of each split, and of words of every source, which random words fill up; None adds none."""

    train: int
    validation: int
    test: int
    length: int | None = None

    def split(self, seed: int = 0) -> dict[str, Dataset]:
        """Train, validation and test, with the columns `source` and `target`; the same for a seed."""
        sizes = {"train": self.train, "validation": self.validation, "test": self.test}
        generator = np.random.default_rng(seed)
        parts, targets = self._rows(generator, sum(sizes.values()))
        sources = [" ".join(row) if self.length is None else hide(row, self.length, generator) for row in parts]
        ends = np.cumsum(list(sizes.values())).tolist()
        return {
            name: Dataset.from_dict({"source": sources[end - size : end], "target": targets[end - size : end]})
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        """The parts of every source, between which fillers may stand, and the targets."""
        raise NotImplementedError


@dataclass(frozen=True)
class NumberSorting(Pairs):
    """`count` numbers from 0 to 99, and the same in ascending order: "42 7 7" to "7 7 42"."""

    count: int = 8

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        numbers = generator.integers(100, size=(rows, self.count))
        ordered = np.sort(numbers, axis=1).astype(str).tolist()
        return numbers.astype(str).tolist(), [" ".join(row) for row in ordered]


@dataclass(frozen=True)
class DateNormalisation(Pairs):
    """A day of the years 1900 to 2099 in one of `FORMATS`, and in ISO 8601.

    "the 5th of March 1998" to "1998-03-05". Numeric dates with dots have the day first, those with
    slashes second. No day is in two splits, so all test days are new.
    """

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        days = generator.choice((LAST_DAY - FIRST_DAY).days + 1, size=rows, replace=False)
        formats = generator.integers(len(FORMATS), size=rows)
        dates = [FIRST_DAY + timedelta(days=day) for day in days.tolist()]
        sources = [[write_day(day, FORMATS[index])] for day, index in zip(dates, formats, strict=True)]
        return sources, [day.isoformat() for day in dates]


def write_day(day: date, form: str) -> str:
    """A day in one of `FORMATS`."""
    return form.format(day, ordinal=ORDINALS.get(day.day, "th"))


def words_of(text: str) -> list[str]:
    """The words and punctuation marks of a text, without case and accents."""
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(BertNormalizer().normalize_str(text))]


def hide(parts: list[str], length: int, generator: np.random.Generator) -> str:
    """The parts in their order at random places of a text of `length` words, the others from `FILLERS`."""
    fillers = length - sum(len(words_of(part)) for part in parts)
    places = np.sort(generator.integers(fillers + 1, size=len(parts)))  # the number of fillers before each part
    words = [FILLERS[index] for index in generator.integers(len(FILLERS), size=fillers)]
    for place, part in reversed([*zip(places.tolist(), parts, strict=True)]):
        words.insert(place, part)
    return " ".join(words)


LONG = {"train": 10_000, "validation": 1000, "test": 1000}
PAIRS: dict[str, Pairs] = {
    "sorting": NumberSorting(train=50_000, validation=2000, test=2000),
    "dates": DateNormalisation(train=20_000, validation=2000, test=2000),
    **{f"sorting-{length}": NumberSorting(**LONG, length=length, count=5) for length in LENGTHS},
    **{f"dates-{length}": DateNormalisation(**LONG, length=length) for length in LENGTHS},
}


SIDES = {"digits": 8, "fashion-mnist": 7}  # regions in a row: single pixels, and means of 4x4 pixels
LEVELS = 16  # the brightest; 0 is the darkest
ROWS = {"train": 10_000, "validation": 1000, "test": 2000}  # of Fashion-MNIST


def image_splits(task: str, folder: Path | None) -> dict[str, Dataset]:
    """The splits of a task of `SIDES`, with columns `text` and `label`; `folder` has the files of Fashion-MNIST."""
    if task == "digits":
        return {name: as_texts(split, SIDES[task]) for name, split in read_digits().items()}
    train, test = (read_table(str(folder / f"{part}.parquet")) for part in ("train", "test"))
    shuffled, size = train.shuffle(seed=0), ROWS["train"]
    splits = {
        "train": shuffled.select(range(size)),
        "validation": shuffled.select(range(size, size + ROWS["validation"])),
        "test": test.select(range(ROWS["test"])),
    }
    return {name: as_texts(split, SIDES[task]) for name, split in splits.items()}


def as_texts(images: Dataset, side: int) -> Dataset:
    """Each image as `side * side` words of grey levels: "grey0 grey12 …"."""
    texts = []
    for image in images["image"]:
        pixels = np.asarray(image, dtype=float)
        step = pixels.shape[0] // side
        grey = pixels.reshape(side, step, side, step).mean((1, 3)) * LEVELS / 255
        texts.append(" ".join(f"grey{level}" for level in grey.round().astype(int).flatten()))
    names = [str(label) for label in sorted(set(images["label"]))]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"text": texts, "label": list(images["label"])}, features=features)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("set", choices=[*SETS, *PAIRS], help="the data set, see above")
    parser.add_argument("folder", type=Path, help="output folder of train, validation and test.parquet")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator; default: 0")
    options = parser.parse_args()
    splits = (SETS | PAIRS)[options.set].split(options.seed)
    for name, file in write_splits(splits, options.folder).items():
        print(f"{file}: {len(splits[name])} rows")


if __name__ == "__main__":
    main()
