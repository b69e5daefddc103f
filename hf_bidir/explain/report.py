"""Explanation of one text or image: the summary, figures and page of `hf-bidir explain`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.common.files import replacing
from hf_bidir.explain.alignment import Alignment
from hf_bidir.explain.checkpoint import load_checkpoint
from hf_bidir.explain.continuation import explain_continuation
from hf_bidir.explain.contributions import contributions
from hf_bidir.explain.encoder_decoder import align
from hf_bidir.explain.explain import SEVERAL_OUTPUTS, compared, explain_each, windows_of_model
from hf_bidir.explain.explanation import Explanation
from hf_bidir.explain.methods import METHODS, check_method, default_method, methods_of, sink_note, token_scores
from hf_bidir.explain.page import png_of
from hf_bidir.explain.prediction import token_level
from hf_bidir.explain.running import check_kind, model_within, reads_images, recorded_once

FIGURES = ("scores", "rollout-flow", "heads", "alignment")
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html
NO_FLOW = (
    "Rollout and flow are not drawn beside the scores: in a causal language model they ranked tokens worse than random "
    "scores do (docs/explanations.md)."
)
LITTLE = 0.1  # share of y below which the summed magnitude of contributions is noted
LONGEST_NAME = 255  # longest file name; longer texts cannot be files
FLOW_LIMIT = 256  # tokens; the time for all flows grows at least with the cube of the length


def explain_checkpoint(
    source: str | Path | tuple[PreTrainedModel, object],
    text_or_image: str,
    *,
    method: str | None = None,
    target: str | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    continuation: str | None = None,
    new_tokens: int | None = None,
    size: int | None = None,
    against: str | None = None,
) -> Explanation | Alignment:
    """Explain the prediction of a checkpoint, signed or softmax, for a text or an image file.

    Args:
        source: as in `load_checkpoint`, or its result.
        method, position, layer, head: as in `token_scores`. The default position is that of the mask for masked
            language models, and the last one for causal ones.
        target: a class by name or index; for language models, a word of the vocabulary.
        continuation, new_tokens: for causal language models, explain each token of a given continuation, or of
            `new_tokens` generated tokens, instead of the next token alone.
        size: for images, as in `read_image`.
        against: for sentence encoders, a second text, as in `explain`.

    Returns:
        The scores of tokens; for generated text or a continuation, its alignment with the source.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint`, `read_text`, `read_image` and `token_scores`; a file
            for a text model, or an option that does not apply to the model.
    """
    model, processor = source if isinstance(source, tuple) else load_checkpoint(source)
    model = compared(model_within(model, processor), processor, against)
    check_kind(model)
    check_method(method or default_method(model, layer, head), layer, head)
    _check_not_a_file(model, text_or_image)
    generation = {"continuation": continuation, "new_tokens": new_tokens}
    chosen: dict[str, Any] = {"target": target, "position": position}
    where: dict[str, Any] = {"method": method, "layer": layer, "head": head}
    if model.config.is_encoder_decoder:
        _check_left_out(model, **chosen, layer=layer, head=head, size=size, **generation)
        return align(model, processor, text_or_image, method=method or "contributions")
    if not any(value is not None for value in generation.values()):
        with recorded_once():
            return _explain_prediction(model, processor, text_or_image, size, **chosen, **where)
    if not kind_of(model).causal:
        raise ValueError(f"{type(model).__name__} does not generate text; leave out --continuation and --new-tokens.")
    if None not in generation.values():
        raise ValueError("expected --continuation (explain a given text) or --new-tokens (generate one), got both.")
    _check_left_out(model, **chosen, size=size)
    options = {name: value for name, value in (where | {"new_tokens": new_tokens}).items() if value is not None}
    return explain_continuation(model, processor, text_or_image, continuation, **options)


def _explain_prediction(
    model: PreTrainedModel, processor, text_or_image: str, size, target, position, method, layer, head
) -> Explanation:
    """The explanation of one prediction, with all that its page draws."""
    options: dict[str, Any] = {"target": target, "position": position, "layer": layer, "head": head, "size": size}
    explanation = next(explain_each(model, processor, [text_or_image], method, **options))
    example, notes = explanation.example, list(explanation.notes)
    part = model.base_model if type(model).__name__.endswith(SEVERAL_OUTPUTS) else model
    if len(windows_of_model(part, processor, example)) > 1:  # figures of a single window would be of another text
        return explanation
    if len(example.token_of_piece) > FLOW_LIMIT and not kind_of(model).causal:
        notes.append(f"Flow is left out of the figures for over {FLOW_LIMIT} tokens; --method flow computes it.")
    target, position = token_level(model, processor, example, target, position)
    inputs = example.inputs
    chosen: dict[str, Any] = {"target": target, "position": position}
    traced = {}
    names = {"rollout", *(["flow"] if len(example.token_of_piece) <= FLOW_LIMIT else [])}
    if kind_of(model).causal:
        names = set()
        notes.append(NO_FLOW)
    for name in sorted(names.intersection(methods_of(part))):
        found = token_scores(part, inputs, name, layer=layer, head=head, **chosen)
        scores = example.by_token(found[0], METHODS[name].additive)
        if sink := sink_note(name, example.tokens, example.special, scores):
            notes.append(f"{name.capitalize()} is not drawn: {sink}")
        else:
            traced[name] = scores
    heads = contributions(part, inputs, **chosen)[0].sum(-1)
    whole = (explanation.method, layer, head) == ("contributions", None, None)
    if whole and explanation.scores.abs().sum() < LITTLE * abs(explanation.value):
        notes.append(
            "y hardly changes with small changes of the attention here (saturation), so these scores and their signs "
            "say little. --method erasure removes whole tokens instead."
        )
    return replace(explanation, notes=notes, heads=heads, traced=traced)


def _check_left_out(model: PreTrainedModel, **choices) -> None:
    """Raise ValueError for options that do not apply to generated text."""
    named = [f"--{name.replace('_', '-')}" for name, value in choices.items() if value is not None]
    if named:
        what = "generated token" if model.config.is_encoder_decoder else "token that follows"
        raise ValueError(f"{type(model).__name__} is explained for each {what}; leave out {', '.join(named)}.")


def _check_not_a_file(model: PreTrainedModel, text: str) -> None:
    if not reads_images(model) and len(text) < LONGEST_NAME and Path(text).is_file():
        raise ValueError(
            f"expected a text in quotation marks, got the file {text}; {type(model).__name__} takes the text itself."
        )


def write_explanation(explanation: Explanation | Alignment, folder: str | Path) -> list[Path]:
    """Write the figures as PNG, and index.html, a page with all of them, into `folder`.

    Replaces an earlier explanation. Everything is drawn first, then each file is written beside its target and renamed.

    Raises:
        FileExistsError: as in `holds_explanation`.
    """
    folder = Path(folder)
    holds_explanation(folder)
    pictures = {name: png_of(figure) for name, (_, figure) in explanation.figures().items()}
    contents = {PAGE: explanation.page(pictures).encode()}  # first, because it marks the folder as an explanation
    contents |= {f"{name}.png": png for name, png in pictures.items()}
    for name, content in contents.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    for name in {f"{name}.png" for name in FIGURES} - contents.keys():
        (folder / name).unlink(missing_ok=True)  # from an earlier explanation of another kind of model
    return [*(folder / f"{name}.png" for name in pictures), folder / PAGE]


def holds_explanation(folder: str | Path) -> bool:
    """Whether `folder` holds an earlier explanation; False if it is missing or empty. Hidden files do not count.

    Raises:
        FileExistsError: `folder` is a file, or holds anything else.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"expected a folder for the figures, {folder} is a file; choose another --output.")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.exists() else set()
    foreign = sorted(names - {PAGE, *(f"{name}.png" for name in FIGURES)})
    page = (folder / PAGE).read_text(encoding="utf-8", errors="replace") if (folder / PAGE).is_file() else ""
    if names and not foreign and PAGE_MARK not in page:
        foreign = [PAGE] if PAGE in names else sorted(names)
    if foreign:
        raise FileExistsError(
            f"expected an empty folder or an earlier explanation, {folder} holds {foreign[0]}; choose another --output."
        )
    return bool(names)
