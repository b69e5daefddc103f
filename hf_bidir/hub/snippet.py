"""The Python example at the top of a model card: load, predict, print, get the coefficients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CARDS = "model_cards"  # the folder of a clone whose sub-folders hold the project's checkpoints
SENTENCE = "a charming film with a weak ending"
PROMPT = "This film is"
EXAMPLE_IMAGE = "example.png"
COEFFICIENTS = "coefficients = outputs.attentions  # one tensor per layer, [batch, heads, queries, keys]"
CLASS = "print(model.config.id2label[outputs.logits.argmax().item()], outputs.logits.softmax(-1).max().item())"
# the digits of scikit-learn are 0 to 16, and the processor expects 0 to 255
DIGIT = 'image = Image.fromarray((load_digits().images[0] * 255 / 16).round().astype("uint8")).convert("RGB")'
NOISE = 'image = Image.effect_noise((64, 64), 60)  # noise; your own: Image.open("image.png")'
# what hf_bidir.common.images.open_image does to 8 bits per channel; the example runs without hf_bidir
AS_IN_TRAINING = (
    'image = ImageOps.exif_transpose(image).convert("RGBA")  # as in training: upright, transparent pixels white',
    'image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")',
)


@dataclass(frozen=True)
class Checkpoint:
    """The facts that the example depends on.

    Attributes:
        name: name of the folder.
        auto_class, processor_class: the Auto classes that load the model and its tokenizer or processor.
        repo_id, revision: the Hub repository; without a `repo_id` the example loads a local folder.
        committed: whether that folder is model_cards/`name` of a clone; otherwise the example runs inside the folder.
        has_code: whether the folder, or that of an adapter's base, has the model code.
        has_single_label: whether the scores of classes are probabilities after a softmax.
        digits: whether the images are those of scikit-learn.
        has_example_image: whether the folder has example.png.
        makes_sentence_vectors: whether sentence-transformers loads it.
        base, base_revision: the base model and its revision, if this is an adapter.
        changes, generation: the fields of its config in which an adapter's model differs from its base, by path, and
            those of its generation config.
    """

    name: str
    auto_class: str
    processor_class: str | None = None
    repo_id: str | None = None
    revision: str = "main"
    committed: bool = False
    has_code: bool = False
    has_single_label: bool = True
    digits: bool = False
    has_example_image: bool = False
    makes_sentence_vectors: bool = False
    base: str | None = None
    base_revision: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)


def snippet(checkpoint: Checkpoint) -> str:
    """Python code that runs unchanged if the checkpoint's weights are available."""
    if checkpoint.makes_sentence_vectors:
        return _sentence_vectors(checkpoint)
    extra, use = _use(checkpoint)
    config = None if checkpoint.base is None else "AutoConfig"
    classes = sorted(filter(None, [checkpoint.processor_class, checkpoint.auto_class, config]))
    imports = [*extra, f"from transformers import {', '.join(classes)}"]
    if checkpoint.base is not None:
        imports.insert(-1, "from peft import PeftModel")
    if not _brings_code(checkpoint):
        imports.insert(0, "import hf_bidir  # registers the signed models with transformers")
    options = _options(checkpoint)
    load = [] if checkpoint.processor_class is None else [_load(_processor(checkpoint), checkpoint, options)]
    eager = ['attn_implementation="eager"'] if use else []
    if checkpoint.base is None:
        load.append(_load(f"model = {checkpoint.auto_class}", checkpoint, [*eager, *options]))
    else:
        load += _adapted(checkpoint, eager)
    return "\n".join([*imports, "", *_source(checkpoint), *load, *use])


def _adapted(checkpoint: Checkpoint, eager: list[str]) -> list[str]:
    """Lines that load the base model, with the fields that the adapter's run changed, and put the adapter on it."""
    pinned = [f'revision="{checkpoint.base_revision}"'] if checkpoint.base_revision else []
    options = ", ".join([*pinned, "trust_remote_code=True"])
    changes = [f"config.{path} = {value!r}" for path, value in checkpoint.changes.items() if path != "label2id"]
    # the base may have a head for other classes, which the adapter replaces
    given = ", ".join(["base", "config=config", "ignore_mismatched_sizes=True", *eager, options])
    generation = [f"model.generation_config.update(**{dict(checkpoint.generation)})"] if checkpoint.generation else []
    revision = ", revision=revision" if checkpoint.repo_id else ""
    return [
        f'base = "{checkpoint.base}"',
        f"config = AutoConfig.from_pretrained(base, {options})",
        *changes,
        f"model = {checkpoint.auto_class}.from_pretrained({given})",
        *generation,
        f"model = PeftModel.from_pretrained(model, source{revision})",
    ]


def _use(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Imports, and lines after loading; empty for a task without an example, or without a tokenizer."""
    auto = checkpoint.auto_class
    if checkpoint.processor_class == "AutoTokenizer":
        return [], _text_uses(checkpoint).get(auto, [])
    if auto == "AutoModelForImageClassification" and checkpoint.processor_class:
        imports, image = _image(checkpoint)
        predict = 'outputs = model(**processor(image, return_tensors="pt"), output_attentions=True)'
        return imports, [*image, predict, _prediction(checkpoint), COEFFICIENTS]
    return [], []


def _text_uses(checkpoint: Checkpoint) -> dict[str, list[str]]:
    def run(text: str) -> str:
        return f'outputs = model(**tokenizer({text}, return_tensors="pt"), output_attentions=True)'

    decode = "tokenizer.decode(model.generate(**inputs, max_new_tokens=30)[0], skip_special_tokens=True)"
    labels = "[model.config.id2label[index] for index in outputs.logits[0].argmax(-1).tolist()]"
    masked = "outputs.logits[0, (inputs.input_ids[0] == tokenizer.mask_token_id).nonzero().item()].softmax(-1)"
    on_inputs = "outputs = model(**inputs, output_attentions=True)"
    return {
        "AutoModelForSequenceClassification": [run(f'"{SENTENCE}"'), _prediction(checkpoint), COEFFICIENTS],
        "AutoModelForTokenClassification": [run(f'"{SENTENCE}"'), f"print({labels})", COEFFICIENTS],
        "AutoModelForCausalLM": [
            f'inputs = tokenizer("{PROMPT}", return_tensors="pt")',
            f"print({decode})",
            on_inputs,
            "probability, token = outputs.logits[0, -1].softmax(-1).max(-1)  # probability of the next token",
            "print(tokenizer.decode(token), probability.item())",
            COEFFICIENTS,
        ],
        "AutoModelForMaskedLM": [
            f'inputs = tokenizer(f"{PROMPT} {{tokenizer.mask_token}}.", return_tensors="pt")',
            on_inputs,
            f"probabilities = {masked}",
            "print(tokenizer.decode(probabilities.argmax()), probabilities.max().item())",
            COEFFICIENTS,
        ],
        "AutoModelForSeq2SeqLM": [
            f'inputs = tokenizer("{SENTENCE}", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))",
        ],
    }


def _image(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    if checkpoint.digits:
        return ["from PIL import Image", "from sklearn.datasets import load_digits"], [DIGIT]
    imports = ["from PIL import Image, ImageOps"]
    if not checkpoint.has_example_image:
        return imports, [NOISE, *AS_IN_TRAINING]
    file = f'f"{{source}}/{EXAMPLE_IMAGE}"'
    if checkpoint.repo_id:
        file = f'hf_hub_download(source, "{EXAMPLE_IMAGE}", revision=revision)'
        imports.insert(0, "from huggingface_hub import hf_hub_download")
    return imports, [f"image = Image.open({file})  # a test image; any of 8 bits per channel will do", *AS_IN_TRAINING]


def _prediction(checkpoint: Checkpoint) -> str:
    return CLASS if checkpoint.has_single_label else "print(outputs.logits)"


def _sentence_vectors(checkpoint: Checkpoint) -> str:
    imports = [] if _brings_code(checkpoint) else ["import hf_bidir  # registers the signed models with transformers"]
    imports.append("from sentence_transformers import SentenceTransformer")
    load = _load("model = SentenceTransformer", checkpoint, _options(checkpoint), method="")
    use = ['vectors = model.encode(["a sentence", "another one"])', "print(model.similarity(vectors, vectors))"]
    return "\n".join([*imports, "", *_source(checkpoint), load, *use])


def _brings_code(checkpoint: Checkpoint) -> bool:
    return checkpoint.has_code or checkpoint.repo_id is not None


def _source(checkpoint: Checkpoint) -> list[str]:
    if checkpoint.repo_id:
        pin = "" if checkpoint.revision == "main" else "  # a tag for exactly these weights and this code"
        named = f'source, revision = "{checkpoint.repo_id}", "{checkpoint.revision}"{pin}'
        return [named, 'options = {"revision": revision, "trust_remote_code": True}']
    if checkpoint.committed:
        return [f'source = "{CARDS}/{checkpoint.name}"  # in the root folder of a clone']
    return ['source = "."  # the folder of this card']


def _options(checkpoint: Checkpoint) -> list[str]:
    if checkpoint.repo_id:
        return ["**options"]
    return ["trust_remote_code=True"] if checkpoint.has_code else []


def _processor(checkpoint: Checkpoint) -> str:
    variable = "tokenizer" if checkpoint.processor_class == "AutoTokenizer" else "processor"
    return f"{variable} = {checkpoint.processor_class}"


def _load(target: str, checkpoint: Checkpoint, options: list[str], method: str = ".from_pretrained") -> str:
    return f"{target}{method}({', '.join(['source', *options])})"
