"""Which heads of the installed transformers can be explained, and is each score what it says?

For every model type with such a head the model is built tiny and random (`families_build.py`) and explained; each score
is recomputed by the stock model without hf_bidir. A score is y minus y without a part: a word whose `attention_mask` is
0 (erasure) or that is left out, or a cell of the image painted in one colour (deletion). The next token has the logits
of the last position, or those of `generate` for encoder-decoders and where a class has one of its own. A stand-in
processor makes inputs of images with texts from those that `families_inputs.py` finds, because this tests models, not
processors. Of images with texts integrated gradients are tried too. Saves benchmarks/results/heads.csv; `make tables`
makes the tables of counts.

    python -m benchmarks.heads                         every type and head; the table took about 20 minutes of a core
    python -m benchmarks.heads --only clip llava       only these types, printed and not saved
"""

import argparse
import csv
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
import transformers
from pandas import DataFrame, crosstab
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from tqdm import tqdm
from transformers import CONFIG_MAPPING, BatchFeature, PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from benchmarks.families import _quiet, reason_of
from benchmarks.families_build import SHRINKS, VOCABULARY, built, tiny_config
from benchmarks.families_inputs import example
from benchmarks.measure import RESULTS, command_line
from benchmarks.runs import markdown
from hf_bidir.checkpoints.examples import IMAGE_TOKENS, first_field
from hf_bidir.common.files import replacing
from hf_bidir.explain import Explanation, explain
from hf_bidir.modeling.compat import stock_heads

SECONDS = 90  # of one head of one type
BUDGET = 24  # forward passes: 4 x 4 cells, the words, and one division
WORDS = ["w014", "w016", "w018", "w020", "w022"]  # ESM has only 33
TEXT = " ".join(WORDS)
QUESTION, OTHER = "w015 w017", "w019 w021"
PAINT = (40, 90, 200)  # the mean colour of the stand-in processor
TOLERANCE = 1e-4  # of the largest score or y, in fp32
POSITION = 2
LONGEST = 200  # characters of a reason
STATUSES = ("not built", "passes", "differs", "fails")
COLUMNS = ("type", "head", "model", "status", "method", "scores", "difference", "gradients", "reason")
Row = dict[str, Any]
Inputs = Mapping[str, Tensor]


class StandIn(ProcessorMixin):
    """Inputs of a tiny model from an image and texts: pixels in the shape that it takes, and words after its
    placeholders of an image."""

    def __init__(self, model: Any):
        self.tokenizer, self.chat_template = tokenizer_of(model), None
        self.image_processor = argparse.Namespace(do_normalize=True, image_mean=[value / 255 for value in PAINT])
        self.inputs = {name: _first(value) for name, value in example(model).items() if isinstance(value, Tensor)}
        ids = self.inputs.get("input_ids", torch.empty(1, 0))  # none where nothing but the image is read
        token = first_field(model.config, *IMAGE_TOKENS)
        self.token = -1 if token is None else token
        places = (ids[0] == self.token).nonzero()
        self.before = ids[0, : int(places.max()) + 1].tolist() if len(places) else []

    def __call__(self, images: Image.Image, text: Any, **_: Any) -> BatchFeature:
        rows = [self.before + self.tokenizer(each)["input_ids"] for each in ([text] if isinstance(text, str) else text)]
        length = max(map(len, rows))
        ids = torch.tensor([row + [self.tokenizer.pad_token_id] * (length - len(row)) for row in rows])
        keep = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        pixels = torch.tensor(list(images.getdata())).float().flatten() / 127 - 1
        made: dict[str, Tensor] = {}
        for name, value in self.inputs.items():
            if name == "input_ids":
                made[name] = ids
            elif name == "attention_mask":
                made[name] = keep
            elif value.shape == self.inputs.get("input_ids", ids).shape:
                made[name] = (ids == self.token).to(value.dtype)
            elif name.startswith("pixel_values") and value.is_floating_point():
                spread = torch.nn.functional.interpolate(pixels[None, None], value.numel(), mode="linear")
                made[name] = value / 4 + spread.view(value.shape)
            else:
                made[name] = value
        return BatchFeature(made)


def _first(value: Tensor) -> Tensor:
    """The first of two examples."""
    return value[: max(1, len(value) // 2)]


def tokenizer_of(model: Any) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are the numbers of the vocabulary."""
    words = Tokenizer(models.WordLevel({f"w{index:03}": index for index in range(VOCABULARY)}, unk_token="w003"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w003", pad_token=f"w{pad:03}")


@torch.no_grad()
def joint(model: Any) -> tuple[str, list[tuple[float, float]]]:
    """The scores of an image with a text, each with the recomputed one."""
    processor, image = StandIn(model), noise()
    found = explain(model, processor, (image, TEXT), budget=BUDGET, verdict=False)

    def y(picture: Image.Image, text: str) -> float:
        inputs = processor(picture, text)
        own = model.can_generate() and type(model).generate is not transformers.GenerationMixin.generate
        if own or (model.can_generate() and model.config.is_encoder_decoder):
            options = {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
            logits = model.generate(**inputs, **options).logits[0][0].float()
        else:
            outputs = model(**inputs, return_dict=True)
            if "logits_per_image" in outputs:
                return outputs.logits_per_image[0, 0].item()
            logits = outputs.logits[0, -1].float()
        return (logits[found.target] - logits.mean()).item()

    whole, pairs = y(image, TEXT), []
    pairs.append((found.value, whole))
    for place, token, score in zip(found.example.places, found.tokens, found.scores.tolist(), strict=True):
        picture, words = image.copy(), [word for word in WORDS if word != token]
        if len(place) > 2:
            left, upper, right, lower = place
            for x in range(left, right):
                for row in range(upper, lower):
                    picture.putpixel((x, row), PAINT)
        pairs.append((score, whole - y(picture, " ".join(words))))
    return found.method, pairs


def gradients_of(model: Any) -> str:
    """Whether integrated gradients of an image with a text sum to the change of y, or why they do not apply."""
    try:
        found = explain(model, StandIn(model), (noise(), TEXT), "integrated-gradients", verdict=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:LONGEST]
    return "other sum" if any("miss the change" in note for note in found.notes) else "sum"


def noise() -> Image.Image:
    return Image.effect_noise((16, 16), 60).convert("RGB")


@torch.no_grad()
def tagged(model: Any) -> tuple[str, list[tuple[float, float]]]:
    """The scores of the label of a token."""
    found = _explained(model, TEXT, position=POSITION)

    def y(inputs: Inputs, places: Sequence[int]) -> Tensor:
        return model(**inputs).logits[0, places[0], found.target]

    return _recomputed(found, tokenizer_of(model)(TEXT, return_tensors="pt"), y, [POSITION])


@torch.no_grad()
def answered(model: Any) -> tuple[str, list[tuple[float, float]]]:
    """The scores of an answer to a question."""
    found = _explained(model, (QUESTION, TEXT))

    def y(inputs: Inputs, places: Sequence[int]) -> Tensor:
        outputs = model(**inputs)
        return outputs.start_logits[0, places[0]] + outputs.end_logits[0, places[1]]

    return _recomputed(
        found, tokenizer_of(model)(QUESTION, TEXT, return_tensors="pt"), y, found.example.answer.positions
    )


@torch.no_grad()
def chosen(model: Any) -> tuple[str, list[tuple[float, float]]]:
    """The scores of the choice that a model makes."""
    found = _explained(model, (TEXT, [QUESTION, OTHER]))
    choice = " ".join(found.tokens[len(WORDS) :])

    def y(inputs: Inputs, places: Sequence[int]) -> Tensor:
        return model(**{name: rows.unsqueeze(1) for name, rows in inputs.items()}).logits[0, 0]

    pair = tokenizer_of(model)(TEXT, choice, return_tensors="pt")
    return _recomputed(found, pair, y, [0, len(found.tokens) - 1])


def _explained(model: Any, given: Any, **choices: Any) -> Explanation:
    """The explanation by erasure, or by deletion where that does not apply."""
    arguments = (model, tokenizer_of(model), given)
    try:
        return explain(*arguments, "erasure", verdict=False, **choices)
    except ValueError:
        return explain(*arguments, "deletion", verdict=False, **choices)


def _recomputed(
    found: Explanation, inputs: Inputs, y: Callable[[Inputs, Sequence[int]], Tensor], read: Sequence[int]
) -> tuple[str, list[tuple[float, float]]]:
    """The scores of an explanation, each with the recomputed one: the word is masked, or for deletion left out.

    Args:
        y: of inputs, and of the places that it is read from.
        read: these places, whose words are left out, because some models mask their states too.
    """
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    whole = y(inputs, read).item()
    pairs = [(found.value, whole)]
    for index in sorted({*range(len(found.tokens))} - {*read}):
        fewer, places = dict(inputs), read
        if found.method == "deletion":
            stays = [place for place in range(len(found.tokens)) if place != index]
            fewer = {name: rows[:, stays] for name, rows in inputs.items()}
            places = [stays.index(place) for place in read]
        else:
            fewer["attention_mask"] = inputs["attention_mask"].index_fill(1, torch.tensor([index]), 0)
        pairs.append((found.scores[index].item(), whole - y(fewer, places).item()))
    return found.method, pairs


HEADS: dict[str, Callable[[Any], tuple[str, list[tuple[float, float]]]]] = {
    "AutoModelForZeroShotImageClassification": joint,
    "AutoModelForImageTextToText": joint,
    "AutoModelForTokenClassification": tagged,
    "AutoModelForQuestionAnswering": answered,
    "AutoModelForMultipleChoice": chosen,
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these types; rows are printed, not saved")
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes, one thread each")
    options = parser.parse_args()
    types = options.only or list(CONFIG_MAPPING_NAMES)
    cases = [(name, auto) for auto in HEADS for name in types if auto in stock_heads(name)]
    rows = []
    for row in tqdm(_swept(cases, options.jobs), total=len(cases), unit="head"):
        rows.append(row)
        tqdm.write(str(row))
    if options.only:
        return
    with replacing(RESULTS / "heads.csv") as file, file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _swept(cases: list[tuple[str, str]], jobs: int) -> Iterator[Row]:
    tqdm.monitor_interval = 0  # no threads, because this process forks
    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(jobs, _quiet, maxtasksperchild=1) as pool:
        results = [pool.apply_async(row_of, case) for case in cases]
        for case, result in zip(cases, results, strict=True):
            try:
                yield result.get(2 * SECONDS)
            except multiprocessing.TimeoutError:
                name, auto = case
                yield {"type": name, "head": head_of(auto), "status": "not built", "reason": "no result"}


def reads_image(model: Any) -> bool:
    """Whether an argument of the model is an image."""
    return bool({"pixel_values", "flattened_patches"} & {*signature(model.forward).parameters})


def head_of(auto: str) -> str:
    """The name of a head without that of the Auto class."""
    return auto.removeprefix("AutoModelFor")


def row_of(name: str, auto: str) -> Row:
    """Build, explain and recompute one head of one type."""

    def too_slow(*_: Any) -> None:
        raise TimeoutError(f"takes longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(SECONDS)
    row = {"type": name, "head": head_of(auto), "model": stock_heads(name)[auto]}
    try:
        model = _built(name, row["model"])
        if "Image" in auto and not reads_image(model):
            return row | {"status": "not built", "reason": "it reads no image"}
    except Exception as error:
        return row | {"status": "not built", "reason": reason_of(error)}
    try:
        method, pairs = HEADS[auto](model)
    except Exception as error:
        return row | {"status": "fails", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"}
    scores, recomputed = torch.tensor(pairs).unbind(1)
    difference = ((scores - recomputed).abs().max() / recomputed.abs().max()).item()
    status = "passes" if difference <= TOLERANCE else "differs"
    row |= {"status": status, "method": method, "scores": len(pairs) - 1, "difference": f"{difference:.1e}"}
    return row | {"gradients": gradients_of(model)} if HEADS[auto] is joint else row


def _built(name: str, model_class: str) -> Any:
    problem: Exception | None = None
    for shrink in SHRINKS:
        try:
            model = built(getattr(transformers, model_class), tiny_config(CONFIG_MAPPING[name], shrink))
            example(model)
            return model
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise problem


def table(runs: DataFrame) -> str:
    """Counts by head, and of all."""
    counts = crosstab(runs["head"], runs["status"], margins=True, margins_name="all")
    rows = []
    for head in [*dict.fromkeys(runs["head"]), "all"]:
        numbers = [int(counts.loc[head].get(status, 0)) for status in STATUSES]
        total = int(counts.loc[head, "all"])
        share = counts.loc[head, "passes"] / (total - counts.loc[head, "not built"])
        rows.append([head, *map(str, [total, *numbers]), f"{share:.0%}"])
    return markdown(["head", "types", *STATUSES, "passes of those built"], rows)


def gradients(runs: DataFrame) -> str:
    """In how many models that pass with an image and a text integrated gradients sum to the change of y."""
    tried = runs.loc[runs["status"] == "passes", "gradients"].dropna()
    counts = [(tried == "sum").sum(), (tried == "other sum").sum()]
    named = ["sum to the change of y", "miss it by over 10 %", "do not apply"]
    rows = [[name, str(count)] for name, count in zip(named, [*counts, len(tried) - sum(counts)], strict=True)]
    return markdown(["integrated gradients", "models"], rows)


if __name__ == "__main__":
    main()
