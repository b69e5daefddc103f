"""Vocabularies are the same in every run; their tokenizers load again, cut, end and decode texts."""

from transformers import AutoTokenizer

from hf_bidir.finetune.data.tokenizer import SPECIAL_TOKENS, train_wordpiece, train_words

TEXTS = [
    f"the {noun} was {verb}ing, and {verb}ed again" for noun in ("Café", "film", "plot") for verb in ("shin", "bor")
]


def wordpiece(**options):
    return train_wordpiece(TEXTS, vocab_size=60, max_length=16, **options)


def test_a_saved_tokenizer_loads_as_a_fast_tokenizer_with_the_same_output(tmp_path):
    tokenizer = wordpiece()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert loaded.model_max_length == 16
    assert loaded("The CAFÉ shined").input_ids == tokenizer("The CAFÉ shined").input_ids
    assert [tokenizer("the film").tokens()[place] for place in (0, -1)] == ["[CLS]", "[SEP]"]


def test_case_matters_unless_it_is_ignored():
    for lowercase in (True, False):
        tokenizer = wordpiece(lowercase=lowercase)
        assert (tokenizer("The film").input_ids == tokenizer("the film").input_ids) == lowercase


def test_special_tokens_come_first_and_word_pieces_are_not_special():
    tokenizer = wordpiece()
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS) == [0, 1, 2, 3, 4]
    assert set(tokenizer.all_special_tokens) == set(SPECIAL_TOKENS)
    assert tokenizer.decode(tokenizer("the film").input_ids, skip_special_tokens=True) == "the film"


def test_every_run_learns_the_same_vocabulary():
    vocabularies = [wordpiece().get_vocab() for _ in range(4)]
    assert vocabularies == vocabularies[:1] * 4


def test_words_are_numbered_by_frequency_then_by_the_alphabet_after_padding_and_unknown():
    tokenizer = train_words(["b a b", "c a b"], vocab_size=4, max_length=8)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "b": 2, "a": 3}
    assert tokenizer("a c b").input_ids == [3, 1, 2]


def test_a_tokenizer_of_characters_gives_the_text_back_with_its_spaces():
    texts = ["the 5th of März", "1998-03-05"]
    tokenizer = train_words(texts, vocab_size=60, max_length=20, lowercase=False, unit="character")
    ids = tokenizer("the 8-März").input_ids
    assert len(ids) == len("the 8-März")
    assert tokenizer.decode(ids) == "the 8-März"


def test_texts_that_are_to_be_written_have_an_end():
    tokenizer = train_words(["b a b"], vocab_size=10, max_length=8, ends=True)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "[BOS]": 2, "[EOS]": 3, "b": 4, "a": 5}
    assert tokenizer("a b").input_ids == [5, 4, 3]
    assert tokenizer("a b b b", truncation=True, max_length=3).input_ids == [5, 4, 3]
    assert tokenizer.decode([2, 5, 4, 3], skip_special_tokens=True) == "a b"
