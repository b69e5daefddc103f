"""What do signed coefficients show on real text that softmax attention does not?

    python training/text_classification.py training/recipes/sst2-minilm-full.yaml ...   # see there; 17 minutes
    hf-bidir convert runs/sst2-minilm-full runs/sst2-minilm-healed --heal DIR/sst2/train.parquet --keep-signs
    python -m research.signs.run --data-dir DIR --healed runs/smollm2-healed

DIR has sst_trees, sst2, ag_news and imdb. Each pair of models is a signed one and a softmax one: "sst2" (MiniLM
fine-tuned on SST-2 with softmax, converted and healed), "encoder" (model_cards/minilm-tanhmax fine-tuned on SST-2 by
research.conversions.run --only encoder, without a penalty in fine-tuning), "minilm" (model_cards/minilm-tanhmax, a
general encoder), "smollm2" (SmolLM2-135M, balanced attention, λ = 0.2). The softmax model is the teacher in the last
two; that of the first two is the one above. In the committed rows the signed model of "sst2" was healed from another
training by the same recipe. Each number is a row of results/signs.csv; `make tables` makes the tables. --only takes
some of the readings.

The protocol, which was fixed before any number was seen. Texts are in two parts: signs, directions, thresholds and
heads are chosen on the first, and everything is counted on the second. Intervals: 95 %, bootstrap over texts. The
control is what softmax has too: the coefficient times the value along a direction, in the softmax model and in the
signed one.

negations (sst2, encoder): sentences of the treebank with "not", "n't", "never" or "no" and, one to three words later, a
word that people labelled positive or negative; training sentences choose, validation and test sentences count. Each is
read as it is, without the negation (a minimal pair), and without another word that is not polar, about as far from the
polar word (the check that any deletion would not do). Read is a number at the polar word, by head, from the query of
[CLS] or of the word itself:
  coefficient    a
  direction      a v·d, d the mean gradient by the head's context of the logit difference positive - negative
  contribution   a v·g, g this gradient for the sentence itself
A number is negative if its sign is not the one that most words have in this head without a negation; also in a second
variant with each sign multiplied by the label of the word. The chosen head, query and variant have the largest
difference between the shares of negative numbers with and without the negation.
Added after the first numbers of "sst2" were seen, and before those of "encoder": the same number at the word that the
third version removes ("elsewhere": does the head change its sign at every word?), and for each reading a threshold in
place of 0, chosen with the head ("threshold": would a fall of softmax's coefficient tell as much?).

quiet (all pairs): queries at which a head adds next to nothing. The output of a head is its context minus the mean
context, through W_o; relative to the norm of the layer's input. A head is quiet at a query if that is below the first
quartile of the softmax model in this layer. Counted: quiet queries; the part of Σ|a| on sinks (special tokens, or the
first token in a decoder, and punctuation), Σ|a|, and the balance |Σa| / Σ|a| (1 for softmax), at quiet queries and at
the others; quiet queries with less than half on sinks. Last, by what factor the output of a quiet head (Σ a v W_o)
grows with |a| in place of a, and when its signs are permuted between keys.

effects (sst2, encoder): does the sign of a coefficient give the sign of its contribution a ∂y/∂a to the logit
difference, once each head is oriented on the first part? Weighted by |contribution|, over all coefficients. The
control, which softmax has too: the sign that most contributions of this head have. Added after the first numbers of
"sst2" were seen: the side of a threshold that is chosen with the head, as for negations.

copies (smollm2): a token that occurred once before and that the softmax model has among its ten likeliest next tokens,
and the nearest earlier query at which the same token is not among the likeliest hundred. Read by head, with the key at
the copy: whether a < 0, and the direct effect on the copy's logit, a v W_o times its row of the unembedding, centred
over the vocabulary. Counted: the negative coefficients at both queries, for the head with the largest difference; the
direct effects of the ten heads that lower the copy most when it is likely; the part of that from negative
coefficients; and how the copy's logit changes when the coefficients of these heads on the copy are 0.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pandas import read_parquet
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from hf_bidir.checkpoints.reading import open_checkpoint
from research.healing.trials import MODEL as SMOLLM2
from research.healing.trials import TEXTS as LANGUAGE
from research.healing.trials import blocks_of
from research.runs import ROOT, command_line, run_grid
from research.signs import copies, effects, negations, quiet
from research.signs.observed import output_maps, share

FILE = Path(__file__).with_name("results") / "signs.csv"
PAIRS = {
    "negations": ["sst2", "encoder"],
    "quiet": ["sst2", "minilm", "smollm2"],
    "effects": ["sst2", "encoder"],
    "copies": ["smollm2"],
}
TEXTS, TOKENS, BLOCKS, BLOCK = 400, 64, 32, 128
COPIES, COPY_BLOCK = 160, 96
SPECIAL_QUERY = 16  # earlier tokens of a decoder have few keys


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--softmax", type=Path, default=ROOT / "runs/sst2-minilm-full")
    parser.add_argument("--converted", type=Path, default=ROOT / "runs/sst2-minilm-healed")
    parser.add_argument("--encoder", type=Path, default=ROOT / "runs/explained/sst2-encoder-0")
    parser.add_argument("--healed", type=Path, default=ROOT / "runs/smollm2-healed")
    parser.add_argument("--minilm", default="sentence-transformers/all-MiniLM-L6-v2", help="a folder or a Hub name")
    parser.add_argument("--smollm2", default=SMOLLM2, help="a folder or a Hub name")
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="READING")
    options = parser.parse_args()

    def opened(pair: str) -> tuple[dict[str, PreTrainedModel], Any]:
        """The softmax model and the signed one, and their tokenizer."""
        source = {"minilm": options.minilm, "smollm2": options.smollm2}.get(pair, options.softmax)
        softmax = open_checkpoint(source).signed_model(torch.float32)
        folder = {
            "sst2": options.converted,
            "encoder": options.encoder,
            "minilm": ROOT / "model_cards/minilm-tanhmax",
            "smollm2": options.healed,
        }
        models = {"softmax": softmax, "signed": open_checkpoint(folder[pair]).model(torch.float32)}
        return {
            name: model.eval().requires_grad_(False) for name, model in models.items()
        }, AutoTokenizer.from_pretrained(source)

    def run(study: str, pair: str) -> tuple[list[dict[str, Any]], list[Path]]:
        models, tokenizer = opened(pair)
        rows, files = STUDIES[study](models, tokenizer, pair, options.data_dir)
        return [{"where": "", "reading": "", **row} for row in rows], files

    trials = [{"study": study, "pair": pair} for study in options.only for pair in PAIRS[study]]
    run_grid(FILE, trials, run, key=["study", "pair", "reading", "measure", "model"])


Study = tuple[list[dict[str, Any]], list[Path]]
Models = dict[str, PreTrainedModel]


def negated(models: Models, tokenizer: Any, pair: str, data_dir: Path) -> Study:
    files = [data_dir / f"sst_trees/{split}.parquet" for split in ("train", "validation", "test")]
    parts = [negations.examples_of(read_parquet(file)) for file in files]
    examples = [event for part in parts for event in part]
    first = torch.arange(len(examples)) < len(parts[0])
    reads = {name: negations.read(model, tokenizer, examples) for name, model in models.items()}
    return negations.rows_of(reads, examples, first), files


def quieted(models: Models, tokenizer: Any, pair: str, data_dir: Path) -> Study:
    if pair == "smollm2":
        files = [data_dir / f"{folder}/test.parquet" for folder in LANGUAGE.values()]
        blocks = [blocks_of(tokenizer, file, BLOCKS // len(files), BLOCK) for file in files]
        rows = torch.stack(blocks, 1).flatten(0, 1)  # alternating, so that both halves have both kinds
    else:
        files = [data_dir / f"{'sst2' if pair == 'sst2' else 'ag_news'}/test.parquet"]
        texts = read_parquet(files[0])["text"].sample(TEXTS, random_state=0)
        rows = [torch.tensor(tokenizer(text, truncation=True, max_length=TOKENS)["input_ids"]) for text in texts]
    texts = [quiet_text(ids, tokenizer, decoder=pair == "smollm2") for ids in rows]
    maps = {name: output_maps(model, model.config.num_attention_heads) for name, model in models.items()}
    reads = {name: quiet.read(model, maps[name], texts) for name, model in models.items()}
    return quiet.rows_of(reads, texts, maps), files


def quiet_text(ids: Tensor, tokenizer: Any, decoder: bool) -> quiet.Text:
    """Sinks: punctuation and special tokens, of a decoder the first token; queries: the tokens that are not special."""
    words = [tokenizer.decode([token]).strip() for token in ids.tolist()]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    first = torch.arange(len(ids)) == 0
    punctuation = torch.tensor([bool(word) and not any(map(str.isalnum, word)) for word in words])
    if decoder:
        return quiet.Text(
            ids[None], first | punctuation | special, ~special & (torch.arange(len(ids)) >= SPECIAL_QUERY)
        )
    return quiet.Text(ids[None], special | punctuation, ~special)


def effective(models: Models, tokenizer: Any, pair: str, data_dir: Path) -> Study:
    files = [data_dir / f"sst2/{split}.parquet" for split in ("train", "test")]
    texts = [text for file in files for text in read_parquet(file)["text"].sample(TEXTS, random_state=0)]
    inputs = [tokenizer(text, truncation=True, max_length=TOKENS, return_tensors="pt") for text in texts]
    first = torch.arange(len(texts)) < TEXTS
    results = {name: effects.read(model, inputs, first) for name, model in models.items()}
    return [row for name, sums in results.items() for row in effects.rows_of(name, sums, first)], files


def copied(models: Models, tokenizer: Any, pair: str, data_dir: Path) -> Study:
    files = [data_dir / f"{folder}/test.parquet" for folder in LANGUAGE.values()]
    blocks = [blocks_of(tokenizer, file, COPIES // len(files), COPY_BLOCK) for file in files]
    texts = torch.stack(blocks, 1).flatten(0, 1)
    results = copies.copies_of(models["softmax"], texts)
    text = torch.tensor([event.text for event in results])
    first = text < len(texts) // 2
    rows = []
    for name, model in models.items():
        coefficients, direct = copies.read(model, texts, results)
        rows += copies.rows_of(name, coefficients, direct, first, text)
        single = {event.text: event for event in results if event.text >= len(texts) // 2}.values()
        changes = copies.removed(model, texts, single, copies.lowering(direct, first))
        rows.append({"model": name, "reading": "lowering heads", "measure": "logit without them", **share(changes)})
    return rows, files


STUDIES: dict[str, Callable[[Models, Any, str, Path], Study]] = {
    "negations": negated,
    "quiet": quieted,
    "effects": effective,
    "copies": copied,
}


if __name__ == "__main__":
    main()
