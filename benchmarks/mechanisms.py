"""The test scores of every attention mechanism on one task, with TanhMax and softmax, and figures of its coefficients.

    python benchmarks/mechanisms.py
    python benchmarks/mechanisms.py --only additive hard --activations tanhmax

Encoder-decoders convert dates (training/recipes/dates-rnn-*.yaml with another mechanism) and sort numbers; classifiers
use the small synthetic set. All data are generated. Runs go to runs/mechanisms; finished runs are not repeated,
interrupted ones continue; processes with other --only or --activations share the work. The table of all finished runs
goes to benchmarks/results/mechanisms.md, a figure of each TanhMax run to docs/mechanisms.
"""

import argparse
import json
from pathlib import Path

from measure import write_table

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.cli.text_demo import SETTINGS
from hf_bidir.common.files import replacing
from hf_bidir.common.statistics import mean_and_deviation
from hf_bidir.explain import align, alignment_grid, load_checkpoint, read_text, text_heatmap
from hf_bidir.explain.running import record_coefficients
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.data.synthetic_pairs import PAIRS
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification
from hf_bidir.finetune.tasks.seq2seq import seq2seq
from hf_bidir.finetune.tasks.text_classification import text_classification

ROOT = Path(__file__).resolve().parent.parent
ACTIVATIONS = ("tanhmax", "softmax")
DATES = {
    "content": {"attn_score": "content"},
    "additive": {"attn_score": "additive"},
    "location": {"attn_score": "location"},
    "general": {},
    "dot": {"attn_score": "dot"},
    "scaled_dot": {"attn_score": "scaled_dot"},
    "bahdanau": {"attn_score": "additive", "decoder_style": "bahdanau"},
    "local-m": {"attn_scope": "local-m", "attn_window": 3},
    "local-p": {"attn_scope": "local-p", "attn_window": 3},
    "hard": {"attn_selection": "hard"},
}
CLASSIFIERS = {
    "per_token": {},
    "feed_forward": {"attn_score": "feed_forward", "encoder": "lstm", "bidirectional": True},
    "learned query": {"attn_score": "additive", "encoder": "gru", "bidirectional": True},
    "hard per_token": {"attn_selection": "hard"},
}
WINDOW = {  # three such layers reach from the first word of a text to the last
    **{"attn_scope": "window", "attn_window": 4, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 1},
    **{"intermediate_size": 64, "max_length": 14, "num_train_epochs": 5, "learning_rate": 3e-3, "vocab_size": 4000},
}
SEEDS = {"sorting": 3, "local-p": 3, "hard": 3}  # the other mechanisms have one seed
DAY = "the 5th of March 1998"
MIXED = "word1109 word310 word1204 pos88 word451 neg68 word294 word349 word776 word261 word959 word1511"
HEADER = ["task", "mechanism", "changed", "test", "TanhMax", "softmax", "seeds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["sorting", *DATES, *CLASSIFIERS, "window"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/mechanisms", help="where the runs go")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs/mechanisms", help="where the pictures go")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/mechanisms.md")
    options = parser.parse_args()
    for name in options.only:
        for activation in options.activations:
            for seed in range(SEEDS.get(name, 1)):
                train(name, activation, seed, options.runs)
    options.pictures.mkdir(parents=True, exist_ok=True)
    for name in names:
        first = folder_of(name, "tanhmax", 0, options.runs)
        if read_record(first).get("status") == "finished":
            draw(name, first, options.pictures / f"{file_name(name)}.png")
    rows = [row(name, options.runs) for name in names]
    notes = (
        "Exact match of encoder-decoders (2,000 sequences), accuracy of classifiers (3,000 texts), in percent; mean ± "
        "standard deviation over several seeds. Validation data selected the checkpoint. No mechanism was tuned: the "
        "third column lists the changes to the recipe of `general` (dates) or of `hf-bidir demo` (synthetic)."
    )
    write_table(options.results, "Mechanisms of attention", notes, HEADER, [cells for cells in rows if cells], "cpu")


def file_name(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-")


def folder_of(name: str, activation: str, seed: int, runs: Path) -> Path:
    return runs / f"{file_name(name)}-{activation}" / f"seed{seed}"


def train(name: str, activation: str, seed: int, runs: Path) -> None:
    """Train one run unless it is finished."""
    folder = folder_of(name, activation, seed, runs)
    if read_record(folder).get("status") == "finished":
        return
    print(f"\n{folder}")
    run = {"seed": seed, "output_dir": folder, "disable_tqdm": True}
    if name == "sorting" or name in DATES:
        data = "sorting" if name == "sorting" else "dates"
        recipe = read_recipe(seq2seq.options, ROOT / f"training/recipes/{data}-rnn-{activation}.yaml")
        seq2seq(recipe | files_of(data, runs) | DATES.get(name, {}) | run)
        return
    run |= files_of("small", runs) | {"attn_activation": activation}
    if name == "window":
        text_classification(WINDOW | run)
    else:
        recurrent_classification(SETTINGS | CLASSIFIERS[name] | run)


def files_of(data: str, runs: Path) -> dict[str, Path]:
    """Save the files of a synthetic set; return the options that name them."""
    splits = (SETS | PAIRS)[data].split()  # always the same rows, so parallel processes may save them too
    return {f"{split}_file": file for split, file in write_splits(splits, runs / data).items()}


def results_of(name: str, activation: str, runs: Path) -> list[float]:
    """The test scores of finished seeds in percent."""
    folders = [folder_of(name, activation, seed, runs) for seed in range(SEEDS.get(name, 1))]
    done = [folder for folder in folders if read_record(folder).get("status") == "finished"]
    numbers = [json.loads((folder / RESULTS).read_text(encoding="utf-8")) for folder in done]
    return [100 * result.get("test_exact_match", result.get("test_accuracy")) for result in numbers]


def row(name: str, runs: Path) -> list[str] | None:
    """The table's row of one mechanism; None without a finished run."""
    found = [results_of(name, activation, runs) for activation in ACTIVATIONS]
    if not any(found):
        return None
    task, changed, metric = "synthetic texts", CLASSIFIERS.get(name, ""), "accuracy"
    if name == "sorting" or name in DATES:
        task, changed, metric = "sorting" if name == "sorting" else "dates", DATES.get(name, ""), "exact match"
    if name == "window":
        changed = "a BERT of three layers, `--attn_scope window --attn_window 4`"
    elif changed:
        changed = f"`{changed}`"
    means = [mean_and_deviation(numbers, digits=1) if numbers else "" for numbers in found]
    counts = " and ".join(dict.fromkeys(str(len(numbers)) for numbers in found if numbers))
    return [task, name if name != "sorting" else "general", changed, metric, *means, counts]


def draw(name: str, run: Path, picture: Path) -> None:
    """The coefficients of one run on one example."""
    model, tokenizer = load_checkpoint(run)
    texts = {"sorting": "42 7 93 7 18 60 5 71"} | dict.fromkeys(DATES, DAY)
    caption = f"{name}: coefficients of TanhMax; their common sign is arbitrary."
    if name in texts:
        found = align(model, tokenizer, texts[name])
        generated = (" " if name == "sorting" else "").join(token for token in found.written if token != "[EOS]")
        target = "5 7 7 18 42 60 71 93" if name == "sorting" else "1998-03-05"
        caption += f" Generated: {generated} ({'correct' if generated == target else f'wrong; correct: {target}'})."
        both = name in ("general", "sorting")  # the others show coefficients alone, which are the last scores
        units = dict(reversed(found.scores.items())) if both else dict([*found.scores.items()][-1:])
        figure = alignment_grid(found.written, found.source, units, caption=caption)
    else:
        example = read_text(tokenizer, MIXED, model.config.max_position_embeddings)
        _, layers = record_coefficients(model, example.inputs)
        if name == "window":
            figure = alignment_grid(example.tokens, example.tokens, {"coefficient a": layers[0][0, 0]}, caption=caption)
        else:
            figure = text_heatmap(example.tokens, layers[0][0, 0, 0], unit="coefficient a", caption=caption)
    with replacing(picture) as temporary:
        figure.savefig(temporary, dpi=90)


if __name__ == "__main__":
    main()
