"""Conversations, and segments of a text that get one score each."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from hf_bidir.checkpoints.signing import signed as signed_model
from hf_bidir.cli import app
from hf_bidir.explain import ForwardCache, explain, read_text
from hf_bidir.explain.inputs.parts import conversation, segmented
from hf_bidir.explain.inputs.text import signed
from tests.explain.conftest import bert, tokenizer
from tests.tiny_models import stock_model

CARD = Path(__file__).parents[2] / "model_cards/imdb-lm-tanhmax"
TEXT = "a good film . un believ ! bad film ."
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Was it good? I ask twice."}]
TEMPLATE = (
    "{% for m in messages %}{{ eos_token }}{{ m.role }}\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ eos_token }}assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chat_tokenizer():
    found = AutoTokenizer.from_pretrained(CARD)
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def chat_model(chat_tokenizer):
    return signed_model(stock_model("gpt2", vocab_size=len(chat_tokenizer)), 0.0)


@pytest.mark.parametrize(
    ("text", "segments", "tokens"),
    [
        (TEXT, "sentences", ["1. a good film .", "2. un believ !", "3. bad film ."]),
        ("a film\n\na bad\n one", "paragraphs", ["1. a film", "2. a bad\n one"]),
        (TEXT, ["good", "bad"], ["a", "good", "film", ".", "un", "believ", "!", "bad", "film", "."]),
        (TEXT, ["good film", "bad film ."], ["a", "1. good film", ".", "un", "believ", "!", "2. bad film ."]),
        (
            'a "film." She (too.) left.\n\nA film!',
            "sentences",
            ['1. a "film."', "2. She (too.)", "3. left.", "4. A film!"],
        ),
    ],
)
def test_the_words_of_a_segment_are_one_token(text, segments, tokens):
    assert read_text(tokenizer(), segmented(text, segments), 40).tokens == ["[CLS]", *tokens, "[SEP]"]


@pytest.mark.parametrize(
    ("segments", "named"),
    [
        ([], "none"),
        ("chapters", "'chapters'"),
        ("messages", "--chat.* got 'messages'"),
        (["bad", "good"], "'good' in the text after the segment before it"),
        ([" "], "' ' in the text"),
    ],
)
def test_segments_that_the_text_does_not_have_are_refused(segments, named):
    with pytest.raises(ValueError, match=named):
        segmented(TEXT, segments)


def test_erasure_removes_a_segment_as_a_whole_in_one_pass():
    model, passes = bert(negative_mass=0.0), []
    model.register_forward_pre_hook(lambda *call: passes.extend(call[-1]["input_ids"]), with_kwargs=True)
    found = explain(model, tokenizer(), TEXT, "erasure", target=1, segments="sentences", verdict=False)
    cache = ForwardCache(model, found.example.inputs, found.example.token_of_piece[None])
    assert len(passes) == 1 + cache.passes == 1 + len(found.tokens)
    assert "when no layer attends to the segment" in str(found)
    inputs = tokenizer()(TEXT, return_tensors="pt")
    whole = model(**inputs).logits[0, 1]
    kept = torch.ones_like(inputs["attention_mask"])
    kept[0, 1:5] = 0  # the first sentence
    without = model(**inputs | {"attention_mask": kept}).logits[0, 1]
    torch.testing.assert_close(found.scores[1], (whole - without).detach())


def test_other_scores_of_a_segment_are_the_sum_over_its_words():
    model = bert()
    words = explain(model, tokenizer(), TEXT, "contributions").scores
    sentences = explain(model, tokenizer(), TEXT, "contributions", segments="sentences").scores
    torch.testing.assert_close(sentences[1:4], torch.stack([words[1:5].sum(), words[5:8].sum(), words[8:11].sum()]))


def test_a_conversation_has_the_tokens_of_its_chat_template_and_its_markup_is_special(chat_tokenizer):
    example = read_text(chat_tokenizer, conversation(chat_tokenizer, QUESTION), 100)
    expected = chat_tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert example.inputs["input_ids"][0].tolist() == expected
    shown = "".join(word for word, special in zip(example.tokens, example.special, strict=True) if not special)
    assert shown == "Bebrief.Wasitgood?Iasktwice."


def test_messages_as_segments_are_named_by_their_roles(chat_model, chat_tokenizer):
    parts = {
        "messages": ["system: Be brief.", "user: Was it good? I ask twice."],
        "sentences": ["1. Be brief.", "2. Was it good?", "3. I ask twice."],
    }
    for segments, names in parts.items():
        found = explain(chat_model, chat_tokenizer, QUESTION, "erasure", segments=segments)
        assert [found.tokens[index] for index in found.example.words] == names


def test_each_token_of_an_answer_is_explained_by_messages_and_by_the_tokens_before_it(chat_model, chat_tokenizer):
    found = explain(chat_model, chat_tokenizer, QUESTION, "erasure", segments="messages", continuation="It was good")
    assert found.explained == 'Answer: "It was good".'
    shown = [index for index, special in enumerate(found.example.special) if not special]
    names = ["system: Be brief.", "user: Was it good? I ask twice.", *found.written[:-1]]
    assert [found.source[index] for index in shown] == names
    begun = [*QUESTION, {"role": "assistant", "content": "It was"}]
    alone = explain(chat_model, chat_tokenizer, begun, "erasure", segments="messages", target="good")
    (scores,) = found.scores.values()
    torch.testing.assert_close(scores[-1, shown[:2]], alone.scores[alone.example.words][:2], rtol=1e-3, atol=1e-4)


def test_the_template_is_grey_and_not_listed_and_generated_tokens_look_different(chat_model, chat_tokenizer):
    found = explain(chat_model, chat_tokenizer, QUESTION, "attnlrp", continuation="It was good")
    template = [name for name, special in zip(found.source, found.example.special, strict=True) if special]
    together = found.listing.scores[torch.tensor(found.example.special)[: found.first_length]].sum().item()
    assert f"Not listed: {len(template)} tokens of the chat template, {signed(together)} together." in found.summary()
    assert {"assistant", chat_tokenizer.eos_token} <= set(template)
    assert not any(name in found.summary(top=99) for name in template)
    *folded, last = found.page().partition("<details")[2].split('class="text"')
    assert [line.count("word generated") for line in (folded[1], last)] == [0, len(found.written) - 1]
    assert last.count("word template") == found.page().partition("<details")[0].count("word template") == len(template)


def test_the_template_of_a_question_is_grey_where_its_next_token_is_explained(chat_model, chat_tokenizer):
    found = explain(chat_model, chat_tokenizer, QUESTION, "attnlrp")
    count = found.example.special.count(True)
    assert f"Not listed: {count} tokens of the chat template, " in found.summary(top=99)
    assert chat_tokenizer.eos_token not in found.summary(top=99).partition("\n")[2]
    assert found.page().count("word template") == count


def test_the_sentences_of_a_prompt_have_the_sums_of_their_words(chat_model, chat_tokenizer):
    found = explain(chat_model, chat_tokenizer, QUESTION, "attnlrp", continuation="It was good")
    names, printed, _ = zip(*found.by_sentence(), strict=True)
    assert list(names) == ["1. Be brief.", "2. Was it good?", "3. I ask twice."]
    totals = found.listing.shown
    sums = [totals[start:stop].sum() for start, stop in pairwise([*found.sentences.values(), len(totals)])]
    assert list(printed) == [signed(total.item()) for total in sums]
    assert f"{signed(sums[1].item())}  2. Was it good?\n" in found.summary()
    first = found.page().partition("<details")[0]
    assert re.findall(r'class="text"><small>(.*?)<', first) == [signed(total.item()) for total in sums]
    assert explain(chat_model, chat_tokenizer, "Was it good?", "attnlrp", continuation="It was").sentences == {}


@pytest.mark.parametrize("content", ["s", "AI", "user"])
def test_a_content_that_the_template_writes_too_is_found_where_the_message_is(content):
    template = (
        "{% if messages[0].role != 'system' %}<s>system\nYou are an AI.</s>\n{% endif %}"
        "{% for m in messages %}<s>{{ m.role }}\n{{ m.content | trim }}</s>\n{% endfor %}<s>assistant\n"
    )
    found = conversation(with_template(template), [{"role": "user", "content": f" {content}\n"}])
    start = found.content.index("<s>user\n") + len("<s>user\n")
    assert found.parts == ((start, start + len(content)),)


def test_a_template_that_changes_contents_is_refused():
    changing = with_template("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    with pytest.raises(ValueError, match="changes the contents; pass the prompt as a text"):
        conversation(changing, QUESTION)


def test_the_last_message_of_the_assistant_is_continued(chat_tokenizer):
    begun = [*QUESTION, {"role": "assistant", "content": "It was"}]
    assert conversation(chat_tokenizer, begun).content.endswith("assistant\nIt was")


def with_template(template):
    found = tokenizer()
    found.chat_template = template
    return found


def test_a_target_after_the_template_is_spelled_without_a_space(chat_model, chat_tokenizer):
    after_template = explain(chat_model, chat_tokenizer, QUESTION, "contributions", target="The").target
    after_a_word = explain(chat_model, chat_tokenizer, "The film was", "contributions", target="The").target
    assert [chat_tokenizer.decode([token]) for token in (after_template, after_a_word)] == ["The", " The"]


def test_messages_are_refused_without_a_chat_template_and_without_contents(chat_tokenizer):
    with pytest.raises(ValueError, match="has no chat template; pass the prompt as a text"):
        conversation(tokenizer(), QUESTION)
    for message in ({"role": "user", "text": "x"}, {"content": "x"}):
        with pytest.raises(ValueError, match="expected messages such as"):
            conversation(chat_tokenizer, [message])


def test_the_command_line_explains_a_message_or_messages_in_json(chat_model, chat_tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in (chat_model, chat_tokenizer):
        part.save_pretrained("chat")
    (tmp_path / "question.json").write_text(json.dumps(QUESTION, indent=2))
    for given, expected in (("Was it good?", "user: Was it good?"), ("--file=question.json", "system: Be brief.")):
        options = ["--chat", "--segments", "messages", "--method", "erasure"]
        result = CliRunner().invoke(app, ["explain", "chat", given, *options], catch_exceptions=False)
        assert expected in result.output
    for text in ("question.json", '[{"role": "user"}]', "[{"):
        result = CliRunner().invoke(app, ["explain", "chat", text, "--chat"], catch_exceptions=False)
        assert (result.exit_code, result.output.splitlines()[-1].startswith("error: expected ")) == (2, True)
