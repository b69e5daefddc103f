"""Explanations of models that read an image with a text."""

import re
from itertools import product

import pytest
import torch
from PIL import Image
from tokenizers.models import WordPiece
from transformers import DetrConfig, DetrForObjectDetection, WhisperConfig, WhisperForConditionalGeneration, pipeline
from typer.testing import CliRunner

import hf_bidir
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.cli import app
from hf_bidir.explain import Request, explain, explain_each
from hf_bidir.explain.image_text_cache import ImageTextCache
from hf_bidir.explain.inputs.image_text import read_image_text
from hf_bidir.explain.methods.image_text import deletion
from tests.explain.conftest import bert, picture, saved, tokenizer, vit
from tests.explain.image_text_models import CELLS, GREY, QUESTION, SIDE, WORDS, spotted, trained, two_towers, untrained

SPOT = (1, 2)
CLASSES = ["a red car", "a cat", "a blue cat"]


@pytest.fixture(scope="module")
def namer():
    """A model that names the colour of the one cell that is not grey, and its processor."""
    return trained()


@pytest.fixture(scope="module")
def named(namer):
    return explain(*namer, (spotted("green", *SPOT), QUESTION))


def next_logits(model, processor, image, question):
    """The logits of the next token, by the processor's own template, without hf_bidir."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    inputs = processor.apply_chat_template([{"role": "user", "content": content}], **options)
    with torch.no_grad():
        return model(**inputs).logits[0, -1]


def similarities(model, processor, image, texts):
    padding = {"padding": "max_length", "max_length": 64} if "Siglip" in type(model).__name__ else {"padding": True}
    with torch.no_grad():
        return model(**processor(images=image, text=texts, return_tensors="pt", **padding)).logits_per_image[0]


def is_cell(place):
    return len(place) == 4


def painted(image, box):
    """The image with a box in grey, by pixels."""
    image, (left, upper, right, lower) = image.copy(), box
    for place in product(range(left, right), range(upper, lower)):
        image.putpixel(place, GREY)
    return image


def without_word(text, word):
    return " ".join(each for each in text.split() if each != word)


def test_a_model_that_names_the_color_of_a_cell_is_explained_by_that_cell_and_the_word_that_asks_for_it(named):
    assert named.prediction == '"green"'
    found = list(zip(named.example.places, named.tokens, named.scores.tolist(), strict=True))
    cells = {place: score for place, _, score in found if is_cell(place)}
    words = {token: score for place, token, score in found if not is_cell(place)}
    side = SIDE // CELLS
    assert max(cells, key=cells.get) == (SPOT[1] * side, SPOT[0] * side, (SPOT[1] + 1) * side, (SPOT[0] + 1) * side)
    assert max(words, key=words.get) == "color"
    assert min(max(cells.values()), max(words.values())) > 1


def test_each_score_is_the_fall_of_y_without_the_word_or_the_cell(namer, named):
    image, green = spotted("green", *SPOT), WORDS.index("green")

    def y(*inputs):
        logits = next_logits(*namer, *inputs)
        return (logits[green] - logits.mean()).item()

    whole = y(image, QUESTION)
    assert named.value == pytest.approx(whole, rel=1e-5)
    for place, token, score in zip(named.example.places, named.tokens, named.scores.tolist(), strict=True):
        inputs = (painted(image, place), QUESTION) if is_cell(place) else (image, without_word(QUESTION, token))
        assert score == pytest.approx(whole - y(*inputs), rel=1e-5, abs=1e-5)


def test_a_contrast_is_the_logit_of_one_token_minus_that_of_another(namer):
    found = explain(*namer, (spotted("green", *SPOT), QUESTION), target="green", instead_of="blue", verdict=False)
    logits = next_logits(*namer, spotted("green", *SPOT), QUESTION)
    assert found.value == pytest.approx((logits[WORDS.index("green")] - logits[WORDS.index("blue")]).item(), rel=1e-5)


def test_the_tokens_of_an_answer_have_a_row_each(namer):
    model, processor = namer
    image = spotted("green", *SPOT)
    answer = explain(model, processor, {"image": image, "text": QUESTION}, new_tokens=2)
    first = explain(model, processor, (image, QUESTION), verdict=False)
    (scores,) = answer.scores.values()
    by_token = dict(zip(answer.source, scores[0].tolist(), strict=True))
    assert answer.written[0] == "green"
    assert len(scores) == len(answer.written) == 2
    assert by_token["color"] == pytest.approx(first.scores[first.tokens.index("color")].item(), rel=1e-4)
    assert answer.listing.scores.tolist() == pytest.approx(scores.sum(0).tolist())
    assert answer.page().count("data:image/png") == 2
    assert answer.written[1] in str(answer)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_similarity_of_an_image_and_a_text_falls_by_the_score_without_a_part(name):
    model, processor = two_towers(name)
    image = picture().resize((SIDE, SIDE))
    found = explain(model, processor, (image, "a red car"))
    whole = similarities(model, processor, image, ["a red car"]).item()
    assert found.value == pytest.approx(whole, rel=1e-5)
    assert found.explained.startswith('Explained: the similarity of the image to "a red car": y = ')
    for place, token, score in zip(found.example.places, found.tokens, found.scores.tolist(), strict=True):
        left = (image, without_word("a red car", token))
        if is_cell(place):
            left = (painted(image, place), "a red car")
        y = similarities(model, processor, left[0], [left[1]]).item()
        assert score == pytest.approx(whole - y, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_texts_as_classes_have_the_probabilities_of_the_zero_shot_pipeline(name):
    model, processor = two_towers(name)
    image = picture()
    classify = pipeline(
        "zero-shot-image-classification",
        model=model,
        tokenizer=processor.tokenizer,
        image_processor=processor.image_processor,
    )
    ranked = classify(image, candidate_labels=CLASSES, hypothesis_template="{}")
    found = explain(model, processor, {"image": image, "text": CLASSES}, verdict=False)
    assert found.prediction == ranked[0]["label"]
    assert found.probability == pytest.approx(ranked[0]["score"], rel=1e-4)


def test_one_class_instead_of_another_has_the_words_of_both():
    model, processor = two_towers("clip")
    image = picture()
    found = explain(model, processor, (image, CLASSES), target="a cat", instead_of="a red car", verdict=False)
    logits = similarities(model, processor, image, CLASSES)
    assert found.value == pytest.approx((logits[1] - logits[0]).item(), rel=1e-5)
    assert found.tokens[min(found.example.texts.values()) :] == ["a", "cat", "a", "red", "car"]
    car = similarities(model, processor, image, ["a cat", "a red"])
    assert found.scores[-1].item() == pytest.approx(found.value - (car[0] - car[1]).item(), rel=1e-4)


def test_a_signed_model_with_no_negative_mass_has_the_scores_of_the_stock_one():
    image = picture()
    stock = explain(*two_towers("clip"), (image, "a red car"))
    model, processor = two_towers("clip")
    signed = explain(hf_bidir.signed(model, 0.0), processor, (image, "a red car"))
    torch.testing.assert_close(signed.scores, stock.scores, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(signed.value, stock.value, atol=1e-5, rtol=1e-4)


def test_a_processor_without_a_chat_template_gets_its_image_token(namer):
    model, processor = namer
    _, bare = untrained()
    bare.chat_template = None
    image = spotted("red", *SPOT)
    found = explain(model, bare, (image, f"{QUESTION} answer"), verdict=False)
    logits = next_logits(model, processor, image, QUESTION)
    assert found.value == pytest.approx((logits.max() - logits.mean()).item(), rel=1e-5)


@pytest.mark.parametrize("size", [(64, 64), (50, 37), (13, 9), (5, 3), (1, 1)])
def test_cells_cover_every_pixel_of_an_image_once_and_have_a_place_on_its_grid(size):
    model, processor = two_towers("clip")
    example = read_image_text(model, processor, (Image.effect_noise(size, 60).convert("RGB"), "a cat"))
    cache = ImageTextCache(model, example, None)
    deletion(cache, Request("deletion", budget=60))
    (example,) = cache.examples
    cells, pixels = example.places[: example.texts[""]], torch.zeros(size)
    for left, upper, right, lower in cells:
        pixels[left:right, upper:lower] += 1
    assert (pixels == 1).all()
    drawn = example.on_grid(torch.arange(1, len(example.tokens) + 1))
    assert set(drawn.flatten().tolist()) == set(range(1, len(cells) + 1))


def test_the_cell_that_matters_is_divided_and_one_whose_quarters_do_not_matter_alone_stays_whole(monkeypatch):
    model, processor = two_towers("clip")
    example = read_image_text(model, processor, (Image.new("RGB", (64, 64), "white"), "a cat"))

    def strongest(y):
        monkeypatch.setattr(ImageTextCache, "_outputs", lambda self, inputs, _=None: {"logits": y(inputs)[:, None]})
        cache = ImageTextCache(model, example, None)
        scores = deletion(cache, Request("deletion", budget=40))
        return cache.examples[0].places[int(scores.argmax())]

    def small(inputs):  # y needs a corner of one cell
        return inputs["pixel_values"][:, :, 1, 1].mean(1)

    def redundant(inputs):  # y needs anything white of one cell
        return inputs["pixel_values"][:, :, :4, :4].amax((1, 2, 3))

    assert strongest(small) == (4, 4, 8, 8)
    assert strongest(redundant) == (0, 0, 16, 16)


@pytest.mark.parametrize("spot", [SPOT, (3, 0)])
def test_integrated_gradients_name_the_cell_of_the_color_wherever_it_is_and_the_word_that_asks_for_it(namer, spot):
    found = explain(*namer, (spotted("green", *spot), QUESTION), "integrated-gradients", verdict=False)
    words = found.example.texts[""]
    assert found.tokens[int(found.scores[:words].argmax())] == "cell in row {}, column {} of 4 × 4".format(*spot)
    assert found.tokens[words + int(found.scores[words:].argmax())] == "color"


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_integrated_gradients_sum_to_the_change_from_the_painted_image_without_words(name):
    model, processor = two_towers(name)
    for parameter in model.text_model.parameters():  # milder weights: y is smooth on the path
        torch.nn.init.normal_(parameter, std=0.05)
    image = picture().resize((SIDE, SIDE))
    found = explain(model, processor, (image, "a red car"), "integrated-gradients", verdict=False)
    padding = {"padding": "max_length", "max_length": 64} if name == "siglip" else {}
    inputs = processor(images=painted(image, (0, 0, SIDE, SIDE)), text="a red car", return_tensors="pt", **padding)
    embeddings = model.text_model.embeddings.token_embedding
    words = torch.isin(inputs["input_ids"], torch.tensor([WORDS.index(word) for word in ("a", "red", "car")]))

    def padded(module, args, kwargs, states):
        return module.weight[0].where(words[..., None], states)

    with torch.no_grad(), hooked([embeddings], after=padded):
        baseline = model(**inputs).logits_per_image.item()
    assert found.scores.sum().item() == pytest.approx(found.value - baseline, rel=0.02, abs=1e-3)


def test_the_verdict_compares_deletion_and_integrated_gradients_by_the_cosine_on_the_parts_of_the_first(namer, named):
    assert named.verdict.method == "integrated-gradients"
    assert named.verdict.headline == "holds"
    image = spotted("green", *SPOT)
    first = explain(*namer, (image, QUESTION), "integrated-gradients")
    second = explain(*namer, (image, QUESTION), verdict=False)
    assert first.verdict.method == "deletion"
    assert first.tokens == second.tokens  # the cells of this image are of one size
    cosine = torch.cosine_similarity(first.scores, second.scores, dim=0).item()
    assert first.verdict.correlation == pytest.approx(cosine, rel=1e-4)
    assert named.verdict.correlation == pytest.approx(cosine, rel=1e-4)


def test_integrated_gradients_have_cells_of_one_size_at_most_8_in_a_row():
    model, processor = two_towers("clip")
    image = Image.effect_noise((64, 64), 60).convert("RGB")
    found = explain(model, processor, (image, "a cat"), "integrated-gradients", verdict=False)
    assert found.example.grid == (8, 8)
    assert len(found.example.boxes) == 64


def test_integrated_gradients_of_a_contrast_are_of_the_words_of_both_texts():
    model, processor = two_towers("siglip")
    found = explain(
        model, processor, (picture(), CLASSES), "integrated-gradients", target="a cat", instead_of="a red car"
    )
    each = [
        explain(model, processor, (picture(), CLASSES), "integrated-gradients", target=name, verdict=False)
        for name in ("a cat", "a red car")
    ]
    cat, car = (one.scores for one in each)
    cells = found.example.texts[""]
    expected = torch.cat([cat[:cells] - car[:cells], cat[cells:], -car[cells:]])
    torch.testing.assert_close(found.scores, expected, atol=1e-4, rtol=1e-3)


def test_a_model_in_training_and_a_caller_in_inference_mode_change_nothing(namer, named):
    model, processor = namer
    model.train()
    with torch.inference_mode():
        found = explain(model, processor, (spotted("green", *SPOT), QUESTION))
    assert model.training
    model.eval()
    torch.testing.assert_close(found.scores, named.scores)
    assert found.verdict.correlation == pytest.approx(named.verdict.correlation)


def test_a_model_that_generates_by_other_logits_is_explained_by_deletion_alone(monkeypatch):
    model, processor = untrained()
    generate = model.generate

    def generated_otherwise(**options):
        made = generate(**options)
        made.logits = tuple(logits + torch.arange(logits.shape[-1]) for logits in made.logits)
        return made

    monkeypatch.setattr(model, "generate", generated_otherwise)
    found = explain(model, processor, (spotted("red", *SPOT), QUESTION))
    assert found.verdict.missing.startswith("to this model")
    with pytest.raises(ValueError, match='choose method="deletion"'):
        explain(model, processor, (spotted("red", *SPOT), QUESTION), "integrated-gradients")


def test_integrated_gradients_of_several_tokens_are_refused(namer):
    with pytest.raises(ValueError, match="a single token"):
        explain(*namer, (spotted("green", *SPOT), QUESTION), "integrated-gradients", new_tokens=2)


def test_repeated_words_and_words_of_several_pieces_have_their_places_in_the_row():
    model, processor = two_towers("clip")
    processor.tokenizer.backend_tokenizer.model = WordPiece({"a": 9, "##b": 12, "<unk>": 1}, unk_token="<unk>")
    example = read_image_text(model, processor, (picture(), ["a", "ab a ab"]))
    assert example.pieces_of(1) == [0, 2, 3, 5]


def test_page_terminal_and_figure_have_the_image_and_the_words(named):
    page = named.page()
    assert page.count("data:image/png") == 1
    assert re.search(r"<b[^>]*>color</b>", page)
    assert "patch" not in page
    assert "patch" not in str(named)
    assert "cell in row 1, column 2 of 4 × 4" in str(named)
    drawn = {text.get_text() for figure in named.plot().subfigs for axes in figure.axes for text in axes.texts}
    assert any(text.startswith("color") for text in drawn)


def test_a_list_of_images_with_texts_is_explained_one_by_one():
    model, processor = two_towers("clip")
    images = [{"image": picture(), "text": text} for text in ("a cat", "a red car")]
    found = list(explain_each(model, processor, images))
    assert [each.value for each in found] == [explain(model, processor, image).value for image in images]


def test_the_command_explains_an_image_with_a_text(tmp_path):
    folder = saved(*two_towers("clip"), tmp_path / "model")
    file = tmp_path / "photo.png"
    picture().save(file)
    command = ["explain", str(folder), str(file), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--text", "a cat", "--text", "a red car", "--target", "a cat"])
    assert result.exit_code == 0, result.output
    assert "photo.png" in (tmp_path / "out/index.html").read_text(encoding="utf-8")
    alone = CliRunner().invoke(app, command)
    assert alone.exit_code != 0
    assert "expected an image and a text (--text)" in alone.output


@pytest.mark.parametrize(
    ("model", "inputs", "named"),
    [
        ("clip", "a cat", "expected an image and a text"),
        ("clip", (picture(), "  "), "at least one word"),
        ("clip", (picture(), []), "at least one word"),
        ("llava", (picture(), CLASSES), "expected an image and a text"),
        ("text", picture(), "expected a text"),
        ("image", (picture(), "a cat"), "expected the path of an image or a PIL image, without a text"),
    ],
)
def test_inputs_of_another_kind_are_named(model, inputs, named):
    made = {
        "clip": lambda: two_towers("clip"),
        "llava": untrained,
        "text": lambda: (bert(), tokenizer()),
        "image": lambda: (vit(), two_towers("clip")[1].image_processor),
    }
    with pytest.raises(ValueError, match=named):
        explain(*made[model](), inputs)


def test_a_continuation_of_an_answer_about_an_image_is_refused():
    with pytest.raises(ValueError, match="continuation is for causal language models"):
        explain(*untrained(), (picture(), "what is it"), continuation="a car")


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: DetrForObjectDetection._from_config(DetrConfig(use_timm_backbone=False)), "detection"),
        (lambda: WhisperForConditionalGeneration(WhisperConfig()), "sound or video"),
    ],
)
def test_detection_and_sound_are_refused_in_one_line(model, named):
    with torch.device("meta"):
        made = model()
    with pytest.raises(ValueError, match=named) as error:
        explain(made, tokenizer(), picture())
    assert "\n" not in str(error.value)
