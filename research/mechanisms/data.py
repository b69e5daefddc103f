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

from pathlib import Path

from hf_bidir.finetune.data.synthetic import SETS, write_splits
from research.mechanisms.pairs import PAIRS
from research.runs import command_line


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
