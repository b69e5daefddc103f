"""What do 8-bit weights cost in accuracy, and what do they save? For the published checkpoints, TanhMax and softmax.

`hf-bidir quantise` makes the copies; the scores are those of `hf-bidir evaluate` on the test split, or the validation
split of a language model.

    python benchmarks/int8.py --data-dir DIR    # DIR/sst2/test.parquet, imdb/test.parquet, cifar10_jpeg/test.parquet
    python benchmarks/int8.py --data-dir DIR --checkpoints model_cards/digits-*

Adapters are merged with their base first. Checkpoints without weights are left out; `make checkpoints` trains them.
Others can be named if the name of their folder starts with that of their data.
"""

import shutil
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.measure import ROOT, options_of, write_table
from hf_bidir.checkpoints.convert import merge_adapter
from hf_bidir.deploy.int8 import quantise_checkpoint
from hf_bidir.hub.evaluate import evaluate_checkpoint

DATA = {  # by the beginning of a folder's name: file below --data-dir (None: comes with scikit-learn), and split
    "cifar10": ("cifar10_jpeg/test.parquet", "test"),
    "digits": (None, "test"),
    "imdb": ("imdb/test.parquet", "validation"),
    "sst2": ("sst2/test.parquet", "test"),
}


def main() -> None:
    published = sorted(folder for name in DATA for folder in (ROOT / "model_cards").glob(f"{name}-*/"))
    cards = {"type": Path, "nargs": "+", "default": published}
    options = options_of(__doc__, "int8", data_dir={"type": Path, "required": True}, checkpoints=cards)
    rows = []
    for folder in tqdm(options.checkpoints, unit="checkpoint"):
        if any(folder.glob("*model.safetensors")):
            rows.append([folder.name, *measured(folder, options.data_dir)])
    notes = (
        "Scores are accuracies in percent, for language models the perplexity, where lower is better. Size: of the "
        "weights file."
    )
    header = ["checkpoint", "full", "int8", "int8 − full", "MB", "MB in int8"]
    write_table(options.output, "8-bit weights", notes, header, rows, "cpu")


def measured(folder: Path, data_dir: Path) -> list[str]:
    file, split = next(data for start, data in DATA.items() if folder.name.startswith(start))
    data = None if file is None else str(data_dir / file)
    with tempfile.TemporaryDirectory() as scratch:
        record = folder / "run.json"
        if (folder / "adapter_config.json").is_file():
            adapter, folder = folder, Path(scratch, "merged")
            merge_adapter(adapter, folder)
            shutil.copy(record, folder)  # the options of the evaluation
        copy = quantise_checkpoint(folder, Path(scratch, "int8"))
        shutil.copy(record, copy)
        full, quantised = score(folder, data, split), score(copy, data, split)
        sizes = [(checkpoint / "model.safetensors").stat().st_size / 1e6 for checkpoint in (folder, copy)]
    return [f"{full:.2f}", f"{quantised:.2f}", f"{quantised - full:+.2f}", *(f"{size:.1f}" for size in sizes)]


def score(folder: Path, data: str | None, split: str) -> float:
    scores = evaluate_checkpoint(folder, data, split=split).scores
    return scores["perplexity"] if "perplexity" in scores else 100 * scores["accuracy"]


if __name__ == "__main__":
    main()
