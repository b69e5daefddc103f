"""Vocabularies of the training texts: WordPiece as in BERT, byte-level BPE as in GPT-2, or whole words."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import (
    BertWordPieceTokenizer,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import BertTokenizerFast, PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNITS = {
    "word": pre_tokenizers.BertPreTokenizer(),
    "character": pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
}
END_OF_TEXT = "<|endoftext|>"
MAX_ALPHABET = 1000  # as the trainer's own default: enough for any alphabet, few enough for Chinese


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    max_length: int,
    lowercase: bool = True,
) -> PreTrainedTokenizerBase:
    """Train a tokenizer that `AutoTokenizer` loads again as a fast BERT tokenizer.

    Args:
        texts: the training split only; a vocabulary that includes the test split leaks it.
        vocab_size: the most entries of the vocabulary, the five special tokens included.
        max_length: the length in tokens that truncation cuts to.
        lowercase: ignore case and accents.
    """
    texts, learner = list(texts), BertWordPieceTokenizer(lowercase=lowercase)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(learner.normalize(text))
    del counts[" "]
    alphabet = sorted(dict(counts.most_common(MAX_ALPHABET)))
    # The trainer numbers "##a", "##b", ... in the order of a hash map, and breaks ties between merges by
    # number, so that two runs learn two vocabularies. As special tokens they are numbered first, in our
    # order; the rebuilt model below knows them as ordinary entries again.
    learner.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        min_frequency=0,
        special_tokens=SPECIAL_TOKENS + [f"##{character}" for character in alphabet],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    rebuilt = BertWordPieceTokenizer(learner.get_vocab(), lowercase=lowercase)
    tokenizer = Tokenizer.from_str(rebuilt.to_str())
    return BertTokenizerFast(tokenizer_object=tokenizer, do_lower_case=lowercase, model_max_length=max_length)


def train_byte_level(texts: Iterable[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE (Radford et al. 2019), which encodes any text and has no unknown token.

    Arguments as in `train_wordpiece`; the vocabulary always holds the 256 bytes. One special token begins, ends and
    pads texts.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _fast(tokenizer, max_length, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)


def train_words(
    texts: Iterable[str],
    *,
    vocab_size: int,
    max_length: int,
    lowercase: bool = True,
    unit: str = "word",
    ends: bool = False,
) -> PreTrainedTokenizerBase:
    """A tokenizer of whole words and punctuation marks, the most frequent ones; the others are [UNK], padding is [PAD].

    Arguments as in `train_wordpiece`; equally frequent words are taken in alphabetical order.

    Args:
        unit: "word", or "character", where every character is a token, spaces too.
        ends: for encoder-decoders: append [EOS] to every text, and add [BOS], the token that generation starts with.
    """
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if ends:
        names |= {"bos_token": "[BOS]", "eos_token": "[EOS]"}
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=unit == "word")
    tokenizer.pre_tokenizer = UNITS[unit]
    special = list(names.values())
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if unit == "character":
        tokenizer.decoder = decoders.Fuse()
    if ends:
        end = ("[EOS]", special.index("[EOS]"))
        tokenizer.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[end])
    return _fast(tokenizer, max_length, **names)


def _fast(tokenizer: Tokenizer, max_length: int, **tokens: Any) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        **tokens,
    )
