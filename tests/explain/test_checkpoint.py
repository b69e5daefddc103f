"""Loading checkpoints, texts and images."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import (
    BertTokenizer,
    ByT5Tokenizer,
    LlavaConfig,
    LlavaModel,
    PreTrainedTokenizerFast,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
)

from hf_bidir.explain import load_checkpoint, read_text
from hf_bidir.explain.forward import check_kind
from hf_bidir.finetune.data.tokenizer import train_byte_level
from tests.explain.conftest import tokenizer, vit


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path):
    vit().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no image processor beside its weights"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("head", "config"),
    [(LlavaModel, LlavaConfig), (Wav2Vec2ForSequenceClassification, Wav2Vec2Config)],
)
def test_a_model_of_other_inputs_is_refused_for_what_it_reads(head, config):
    with pytest.raises(ValueError, match=f"{head.__name__} takes sound or video, or has no logits of both"):
        check_kind(head, config())


def test_word_pieces_are_joined_to_the_words_of_the_text():
    example = read_text(tokenizer(), "a unbelievably good film", limit=12)
    scores = torch.tensor([[10.0, 20, 1, 2, -4, 30, 40, 50]])
    assert example.by_token(scores).tolist() == [[10, 20, -1, 30, 40, 50]]
    assert example.by_token(scores, add=False).tolist() == [[10, 20, 2, 30, 40, 50]]
    cut = read_text(tokenizer(), "a " * 30, limit=12)
    assert (cut.inputs["input_ids"].shape[1], cut.truncated) == (12, 20)


def test_words_are_split_at_blanks_where_the_tokenizer_reports_one_word():
    known = [("Ġ", -9.0), (" ", -9.0), (" film", -1.0), *((letter, -5.0) for letter in "agodfilm")]
    pieces = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram(known, unk_id=0)))
    assert read_text(pieces, "a good film", limit=12).tokens == ["a", "good", "film"]
    drops_marks = BertTokenizer(vocab={word: index for index, word in enumerate(["[PAD]", "[UNK]", "cafe"])})
    assert "cafe\u0301" in read_text(drops_marks, "cafe\u0301", limit=9).tokens


def test_a_contraction_is_one_word_and_a_quotation_mark_is_none_of_its_letters():
    splits_at_marks = BertTokenizer(vocab={word: index for index, word in enumerate(["[PAD]", "[UNK]"])})
    words = read_text(splits_at_marks, "can't cafe\u0301's n't 'film' 5'10", limit=30).tokens[1:-1]
    assert words == ["can't", "cafe\u0301's", "n't", "'", "film", "'", "5", "'", "10"]


def byte_level():
    """Bytes alone, as GPT-2's pre-tokenizer and decoder leave them where no merge applies."""
    return train_byte_level(["a"], vocab_size=257, max_length=64)


def byte_fallback():
    """Characters outside the vocabulary as tokens such as <0xE6>, as in Llama 2 and Gemma."""
    known = ["<unk>", "▁", "a", "▁a", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary, options = {piece: index for index, piece in enumerate(known)}, {"unk_token": "<unk>", "fuse_unk": True}
    pieces = Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, **options))
    pieces.normalizer = normalizers.Replace(" ", "▁")
    pieces.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=pieces)


@pytest.mark.parametrize("pieces", [byte_level, byte_fallback])
@pytest.mark.parametrize(
    "word", ["日本", "é", "नमस्ते", "cafe\u0301", "can't", "l’homme", "👨\u200d👩\u200d👧", "می\u200cخواهم"]
)
def test_a_word_is_spelled_as_in_the_text_however_many_pieces_a_character_has(word, pieces):
    example = read_text(pieces(), f"a {word} a", limit=64)
    assert example.tokens == ["a", word, "a"]
    scores = torch.arange(len(example.token_of_piece)).float()
    assert example.by_token(scores)[1] == scores[1:-1].sum() - (scores[-2] if pieces is byte_level else 0)


@pytest.mark.parametrize("words", [tokenizer, ByT5Tokenizer])
@pytest.mark.parametrize("text", ["   \n", ""])
def test_an_empty_text_is_refused(text, words):
    with pytest.raises(ValueError, match="at least one word"):
        read_text(words(), text, limit=12)


def test_a_tokenizer_without_offsets_gives_its_pieces():
    example = read_text(ByT5Tokenizer(), "a ok", limit=16)
    assert (example.tokens, example.special) == (["a", "␣", "o", "k", "</s>"], [False] * 4 + [True])
    assert read_text(ByT5Tokenizer(), "abcdef", limit=4).truncated == 3
