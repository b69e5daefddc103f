"""Load any checkpoint, signed or softmax, and prepare a text for explanation."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.convert import signed_model
from hf_bidir.checkpoints.reading import check_full_precision, checkpoint_processors, read_bidir, read_config
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.explain.colors import JOINERS, visible
from hf_bidir.explain.running import check_kind, reads_images
from hf_bidir.explain.sentence_encoder import sentence_encoder
from hf_bidir.modeling.model_types import is_signed

UNDECODED = "\ufffd"  # in the text of a part of a character


def load_checkpoint(source: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a bidir checkpoint as it is, or a softmax one of transformers or timm as the equal bidir model (`λ = 0`).

    Returns:
        The model, in fp32 and evaluation mode, and its tokenizer or image processor. A folder of sentence-transformers
        is a `SentenceEncoder`, whose output is the embedding; its `transformer` is the model without pooling.

    Raises:
        FileNotFoundError: no such checkpoint, or one without weights, tokenizer or image processor.
        ValueError: it reads neither one text nor one image, its attention cannot be made signed, its weights are
            quantised, or its tokenizer has tokens without an embedding; or as in `sentence_encoder`.
        ModuleNotFoundError: a folder of sentence-transformers, which is not installed.
    """
    sentences = None if str(source).startswith(TIMM_PREFIX) else sentence_folder(source)
    transformer = sentences.transformer if sentences else source
    if sentences is None or sentences.name is None:  # the folder of a Hub repository has its weights later
        _check_weights(Path(transformer))
    config = None if str(source).startswith(TIMM_PREFIX) else read_config(transformer)
    if config is not None:
        check_full_precision(config, source, "explained")
    if config is not None and is_signed(config.model_type):
        if sentences:
            sentences.fetch_weights()
        model = read_bidir(transformer, torch.float32)
        processors = checkpoint_processors(transformer, model)
    else:
        model, processors, _ = signed_model(source, dtype=torch.float32)
    check_kind(model)
    images = reads_images(model)
    fitting = [found for found in processors if isinstance(found, PreTrainedTokenizerBase) != images]
    if not fitting:
        kind = "image processor" if images else "tokenizer"
        raise FileNotFoundError(f"{source} has no {kind} beside its weights; save one there with save_pretrained.")
    model = sentence_encoder(model, fitting[0], sentences) if sentences else model
    return model.eval(), fitting[0]


def _check_weights(folder: Path) -> None:
    if (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        card = " Its README.md may say how to produce them." if (folder / "README.md").is_file() else ""
        raise FileNotFoundError(f"{folder} has no weights (*.safetensors).{card}")


@dataclass(frozen=True)
class Example:
    """Model inputs of one text or image, with a name for every token that gets a score."""

    inputs: dict[str, Tensor]
    tokens: list[str]  # words as spelled in the text, or patches; special tokens included
    special: list[bool]
    token_of_piece: Tensor  # [length]: index of the token that each model position belongs to
    truncated: int = 0  # number of word pieces cut off
    grid: tuple[int, int] | None = None  # rows and columns of patches
    photo: Image.Image | None = None  # the part of an image that is the input, in its own resolution

    def by_token(self, scores: Tensor, add: bool = True) -> Tensor:
        """Combine scores `[..., length]` of model positions to scores of tokens, `[..., tokens]`.

        Args:
            add: sum the scores of a word's pieces; otherwise take the one of largest magnitude.
        """
        pieces = torch.nn.functional.one_hot(self.token_of_piece).bool().T.to(scores.device)  # [tokens, length]
        table = scores.unsqueeze(-2) * pieces
        if add:
            return table.sum(-1)
        return table.gather(-1, table.abs().argmax(-1, keepdim=True)).squeeze(-1)


def read_text(tokenizer, text: str | Sequence[str], limit: int) -> Example:
    """Tokenize a text or a list of words, truncated to `limit` word pieces.

    A word is what the tokenizer splits a text into before it makes pieces, with its combining marks.

    Raises:
        ValueError: the text has no word.
    """
    split = not isinstance(text, str)
    if not "".join(text).strip():
        raise ValueError(f"expected a text with at least one word, got {text!r}.")
    if not tokenizer.is_fast:
        return _read_pieces(tokenizer, text, limit)
    text = list(text) if split else text
    whole = len(tokenizer(text, is_split_into_words=split, verbose=False)["input_ids"])
    options = {"truncation": True, "max_length": limit, "return_tensors": "pt", "return_offsets_mapping": True}
    encoding = tokenizer(text, is_split_into_words=split, **options)
    offsets = encoding.pop("offset_mapping")[0].tolist()
    pieces = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    tokens: list[str] = []
    special: list[bool] = []
    token_of_piece: list[int] = []
    last, first, reach = None, 0, 0  # the word of the piece before, from its smallest start to its largest end
    for piece, word, (start, end) in zip(pieces, encoding.word_ids(), offsets, strict=True):
        begins = word is None or word != last
        if isinstance(text, str) and word is not None and last is not None:
            begins = _begins_word(text, first, reach, start, begins)
        if begins:
            tokens.append(piece)
            special.append(word is None)
            first, reach = start, end
        last, first, reach = word, min(first, start), max(reach, end)
        if word is not None:
            tokens[-1] = _spelling(text, first, reach) if isinstance(text, str) else text[word]
        token_of_piece.append(len(tokens) - 1)
    if all(special):
        raise ValueError(f"expected a text with at least one word, got {text!r}.")
    return Example(dict(encoding), tokens, special, torch.tensor(token_of_piece), whole - len(pieces))


def _begins_word(text: str, first: int, reach: int, start: int, new: bool) -> bool:
    """Whether a piece at `start` begins a word, after one at `first` to `reach`; `new` is what the tokenizer says."""
    if start < reach:  # pieces of one character overlap
        return False
    before, here = text[start - 1 : start], text[start : start + 1]
    if _is_mark(here) or (_is_mark(before) and here.isalpha()):  # some pre-tokenizers split words at their marks
        return False
    # a tokenizer without a pre-tokenizer reports the whole text as one word; split it at whitespace
    return new or ((before.isspace() or here.isspace()) and text[first:reach].strip() != "")


def _spelling(text: str, first: int, reach: int) -> str:
    """The word at these places, with the marks of its last character, which some tokenizers leave out."""
    while _is_mark(text[reach : reach + 1]):
        reach += 1
    return text[first:reach].strip() or "␣"


def _is_mark(char: str) -> bool:
    """Whether it belongs to the character before it: a combining mark, or a joiner of letters."""
    return char != "" and (char in JOINERS or unicodedata.category(char).startswith("M"))


def spelled(tokenizer, ids: Sequence[int]) -> list[str]:
    """Every token as text.

    Tokens that make up one character together are named by it and their place, such as "日 [1/3]"; a part of a
    character without its other parts by its piece; a token that the tokenizer does not have by its id.
    """
    names: list[str] = []
    for part in _characters(tokenizer, ids):
        text, (piece, *_) = tokenizer.decode(part), tokenizer.convert_ids_to_tokens(part)
        if len(part) > 1:
            names += [f"{text} [{place}/{len(part)}]" for place in range(1, len(part) + 1)]
        else:
            names.append(f"{text} [{piece}]" if UNDECODED in text else text or piece or f"token {part[0]}")
    return [visible(name) for name in names]


def _characters(tokenizer, ids: Sequence[int]) -> Iterator[list[int]]:
    """The ids, with those together that only decode together."""

    def complete(part: list[int]) -> bool:
        return UNDECODED not in (text := tokenizer.decode(part)) and text != ""

    rest = list(ids)
    while rest:
        count = 1
        while not complete(rest[:count]) and count < len(rest) and not complete(rest[count : count + 1]):
            count += 1
        count = count if complete(rest[:count]) else 1
        yield rest[:count]
        rest = rest[count:]


def _read_pieces(tokenizer, text: str | Sequence[str], limit: int) -> Example:
    """Like `read_text`, for tokenizers that return no character offsets, such as Marian's.

    SentencePiece pieces are joined to words at each "▁"; other pieces stay as they are, joined to characters.
    """
    text = text if isinstance(text, str) else " ".join(text)
    whole = len(tokenizer(text, verbose=False)["input_ids"])
    encoding = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
    ids = encoding["input_ids"][0].tolist()
    marked = any("▁" in piece for piece in tokenizer.convert_ids_to_tokens(ids))
    tokens: list[str] = []
    special: list[bool] = []
    token_of_piece: list[int] = []
    own_ids = set(tokenizer.all_special_ids)
    if tokenizer.unk_token_id != tokenizer.pad_token_id:
        own_ids -= {tokenizer.unk_token_id}  # stands for a part of the text
    for part in _characters(tokenizer, ids):
        piece = tokenizer.decode(part) if len(part) > 1 else tokenizer.convert_ids_to_tokens(part)[0]
        own = part[0] in own_ids
        if own or not marked or piece.startswith("▁") or not tokens or special[-1]:
            tokens.append("")
            special.append(own)
        tokens[-1] += piece.replace("▁", "")
        token_of_piece += [len(tokens) - 1] * len(part)
    if all(special):
        raise ValueError(f"expected a text with at least one word, got {text!r}.")
    named = [token if token.strip() else "␣" for token in tokens]
    return Example(dict(encoding), named, special, torch.tensor(token_of_piece), whole - len(ids))
