"""Write the synthetic texts of the TanhMax paper as parquet files.

examples:
  python training/synthetic.py small runs/synthetic
  python training/recurrent_classification.py --output_dir runs/polar --train_file runs/synthetic/train.parquet \\
      --validation_file runs/synthetic/validation.parquet --test_file runs/synthetic/test.parquet
"""

import argparse
from pathlib import Path

from hf_bidir.finetune.synthetic import SETS, write_splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=list(SETS), help="small: 10,000 texts of 2,000 words; large: 50,000 of 10,000")
    parser.add_argument("folder", type=Path, help="where train, validation and test.parquet go")
    parser.add_argument("--seed", type=int, default=0, help="of the generator; by default 0")
    options = parser.parse_args()
    splits = SETS[options.set].split(options.seed)
    for name, file in write_splits(splits, options.folder).items():
        print(f"{file}: {len(splits[name])} texts")


if __name__ == "__main__":
    main()
