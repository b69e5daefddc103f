"""Do explanations agree with human rationales? Movie reviews of ERASER; exploratory, with one seed.

    python training/distill.py training/recipes/minilm-healed.yaml --max_steps 30 --keep_signs false \\
        --output_dir runs/minilm-healed-barely
    DATA="--train_file DIR/train.parquet --validation_file DIR/validation.parquet --test_file DIR/test.parquet \\
        --max_length 512 --per_device_train_batch_size 8 --num_train_epochs 2 --eval_steps 0.5"
    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml $DATA \\
        --output_dir runs/movies-softmax
    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml $DATA --attn_activation tanhmax \\
        --model_name_or_path runs/minilm-healed-barely --output_dir runs/movies-tanhmax
    python benchmarks/human_rationales.py --data-dir DIR \\
        --models softmax=runs/movies-softmax tanhmax=runs/movies-tanhmax

`DIR` is movie_rationales with {train,validation,test}.parquet. The measure is the area under the precision-recall
curve of the scores for the true class against the words marked by people, mean over documents, which are truncated to
--max-length word pieces. The table goes to benchmarks/results/human_rationales.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from explained import load, orient, sample, words_of
from joblib import Parallel, delayed
from measure import RESULTS, write_table
from sklearn.metrics import average_precision_score
from tqdm import tqdm

from hf_bidir.explain import METHODS, token_scores
from hf_bidir.explain.methods import methods_of

SLOW = ("erasure", "integrated-gradients", "flow", "signed-flow")  # seconds per document
VARIANTS = ("erasure-mask", "erasure-token")  # not measured here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds {train,test}.parquet")
    parser.add_argument("--models", type=named_folder, nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--documents", type=int, default=199, help="of the test split")
    parser.add_argument("--slow-documents", type=int, default=10, help=f"the first of them, for {', '.join(SLOW)}")
    parser.add_argument("--max-length", type=int, default=256, help="maximum word pieces per document")
    parser.add_argument("--output", type=Path, default=RESULTS / "human_rationales.md")
    options = parser.parse_args()
    documents = sample(options.data_dir / "test.parquet", options.documents)
    train = [row["text"] for row in sample(options.data_dir / "train.parquet", 64)]
    measured = Parallel(n_jobs=len(options.models))(
        delayed(areas)(name, folder, documents, train, options) for name, folder in options.models
    )
    rows, few, shares = [], options.slow_documents, measured[0][1]
    for (name, _), (found, _) in zip(options.models, measured, strict=True):
        rows += [[name, method, mean_and_error(values) if method not in SLOW else "", mean_and_error(values[:few])]
                 for method, values in found.items()]  # fmt: skip
    notes = (
        f"Exploratory: one model of each kind, one seed. Test split, the first {options.max_length} word pieces of "
        f"{len(shares)} documents with a rationale in them. "
        f"{mean(shares):.0%} of their words are marked, the score of a random ranking over all documents; mean ± "
        "standard error over documents. " + " ".join(f"{name}: `{folder.name}`." for name, folder in options.models)
    )
    header = ["model", "method", "AUPRC, all documents", f"AUPRC, first {options.slow_documents}"]
    write_table(options.output, "Explanations and human rationales", notes, header, rows, "cpu")


def named_folder(word: str) -> tuple[str, Path]:
    """`NAME=FOLDER` of the command line."""
    name, _, folder = word.partition("=")
    if not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"expected NAME=FOLDER of a checkpoint, got {word}")
    return name, Path(folder)


def mean_and_error(values: Sequence[float]) -> str:
    """Mean ± standard error; without the error for a single value, empty without values."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}" if values else ""


def areas(name: str, folder: Path, documents, train, options) -> tuple[dict[str, list[float]], list[float]]:
    """The area for every document by method, and the share of marked words per document; runs in its own process."""
    torch.set_num_threads(1)
    model, tokenizer = load(folder)
    orient(model, tokenizer, train, target=1)
    found = {method: [] for method in methods_of(model) if method not in VARIANTS}
    shares = []
    for row in tqdm(documents, desc=name, unit="document"):
        words = row["text"].split()
        example = words_of(tokenizer, words, options.max_length)
        if example is None:
            continue
        shown = ~np.array(example.special)
        marked = np.array(row["rationale_mask"])[: shown.sum()]
        if not 0 < marked.sum() < len(marked):
            continue
        for method, values in found.items():
            if method in SLOW and len(shares) >= options.slow_documents:
                continue
            target = None if not METHODS[method].signed or METHODS[method].oriented else int(row["label"])
            scores = example.by_token(token_scores(model, example.inputs, method, target)[0], METHODS[method].additive)
            if METHODS[method].oriented and row["label"] == 0:
                scores = -scores  # heads are oriented towards class 1
            values.append(average_precision_score(marked, scores.numpy()[shown]))
        shares.append(marked.mean())
    return found, shares


if __name__ == "__main__":
    main()
