"""Healing brings a converted model close to its teacher, on texts and images, and can be resumed."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    BertTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)
from typer.testing import CliRunner

from hf_bidir.checkpoints.layer_hooks import signed_parts, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.cli import app
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import HealingArguments
from hf_bidir.finetune.data.image_data import new_image_processor
from hf_bidir.finetune.heal import DistillationTrainer, student_and_teacher
from hf_bidir.finetune.schedule import NegativeMassSchedule
from tests.training.checkpoints_of_others import TEXT, checkpoint_of
from training.distill import main

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RUN = shlex.split(
    "--max_steps 40 --per_device_train_batch_size 8 --learning_rate 1e-2 --logging_steps 1 --use_cpu "
    "--disable_tqdm true --eval_steps 20 --save_steps 20 --save_total_limit 5"
)
WORDS = [f"w{index}" for index in range(40)]


def save_texts(words, file):
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, size)) for size in generator.integers(4, 12, 300)]
    Dataset.from_dict({"text": texts}).to_parquet(str(file))


def bert_in(place):
    """Options that name a softmax BERT, whose attention is far from uniform, and a text of random words."""
    folder = place / "bert"
    torch.manual_seed(0)
    BertModel(BertConfig(**SHAPE, vocab_size=45, initializer_range=0.3)).save_pretrained(folder)
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(folder)
    save_texts(WORDS, place / "texts.parquet")
    return ["--model_name_or_path", str(folder), "--train_file", str(place / "texts.parquet")]


@pytest.fixture
def bert(tmp_path):
    return bert_in(tmp_path)


@pytest.fixture(scope="module")
def healed(tmp_path_factory):
    """The options of a healing of BERT without penalties, its folder, and its error."""
    place = tmp_path_factory.mktemp("healed")
    options = bert_in(place)
    results = main([*options, *RUN, "--keep_signs", "false", "--output_dir", str(place / "healed")])
    return options, place / "healed", results["eval_relative_error"]


@pytest.fixture
def vit(tmp_path):
    """Options that name a softmax ViT with a classifier, and a folder of images without classes."""
    folder, images = tmp_path / "vit", tmp_path / "images"
    torch.manual_seed(0)
    config = ViTConfig(**SHAPE, image_size=8, patch_size=4, initializer_range=0.3, num_labels=3)
    ViTForImageClassification(config).save_pretrained(folder)
    new_image_processor(8).save_pretrained(folder)
    images.mkdir()
    for index, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (100, 8, 8, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(images / f"{index}.png")
    return ["--model_name_or_path", str(folder), "--train_file", str(images)]


def error_without_training(options, folder):
    """The relative error of a student that is at λ = 1 from the first step and hardly trained."""
    words = shlex.split("--max_steps 1 --learning_rate 0 --warmup_ratio 0 --centre false")
    return main([*options, *RUN, *words, "--output_dir", str(folder)])["eval_relative_error"]


def test_healing_brings_the_student_close_to_its_teacher_at_full_negative_mass(healed, tmp_path):
    options, folder, error = healed
    assert error < 0.5 * error_without_training(options, tmp_path / "swapped")
    assert json.loads((folder / "config.json").read_text())["attn_negative_mass"] == 1.0


def test_healing_without_effect_says_so(bert, tmp_path, caplog):
    save_texts(WORDS, bert[3])
    error_without_training(bert, tmp_path / "swapped")
    assert "Healing did not bring the student closer to its teacher" in caplog.text
    caplog.clear()
    main([*bert, *RUN, "--keep_signs", "false", "--output_dir", str(tmp_path / "healed")])
    assert "closer" not in caplog.text


def test_a_classifier_of_images_is_healed_and_its_interrupted_healing_continues_to_the_same_weights(
    vit, tmp_path, crash
):
    options = [*vit, *RUN, "--flip", "--shift", "1"]
    whole = main([*options, "--output_dir", str(tmp_path / "whole")])
    assert whole["eval_relative_error"] < 0.5 * error_without_training(vit, tmp_path / "swapped")
    again = [*options, "--output_dir", str(tmp_path / "crashed")]
    crash(main, again, after_steps=30)
    main(again)
    weights, crashed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "crashed"))
    assert all(torch.equal(crashed[name], weight) for name, weight in weights.items())


def test_heads_use_both_signs_more_evenly_with_the_penalty(healed, tmp_path, monkeypatch):
    monkeypatch.setattr(DistillationTrainer, "needed_signs_weight", 0.0)
    main([*healed[0], *RUN, "--output_dir", str(tmp_path / "kept")])

    def weaker_signs(folder):
        """The mean over heads of the smaller share of either sign in the variance of a head's output over tokens."""
        model, shares = open_checkpoint(folder).model(), []

        def record(layer, *parts):
            variances = torch.stack([part[0].var(0).sum(-1) for part in parts])
            shares.append(variances.amin(0) / variances.sum(0))

        with torch.no_grad(), signed_parts(model, record):
            model(input_ids=torch.arange(5, 45)[None])
        return torch.cat(shares).mean()

    assert weaker_signs(tmp_path / "kept") > 0.05 + weaker_signs(healed[1])


def change_without_negatives(folder, inputs):
    """The relative squared change of the model's first output when its negative coefficients are set to 0."""
    model = open_checkpoint(folder).model().requires_grad_(False)
    before = model(**inputs)[0]
    with without_negatives(model):
        return ((model(**inputs)[0] - before).square().sum() / before.square().sum()).item()


def test_outputs_come_to_need_the_negative_coefficients(healed, tmp_path, monkeypatch):
    monkeypatch.setattr(DistillationTrainer, "both_signs_weight", 0.0)
    monkeypatch.setattr(DistillationTrainer, "margin", 2.0)
    main([*healed[0], *RUN, "--output_dir", str(tmp_path / "kept")])
    kept, plain = (
        change_without_negatives(folder, {"input_ids": torch.arange(5, 45)[None]})
        for folder in (tmp_path / "kept", healed[1])
    )
    assert kept > 1.5 * plain


def test_signs_can_be_kept_in_a_decoder(bert, tmp_path):
    save_texts(TEXT.split(), bert[3])  # words that the tokenizers of these checkpoints know
    options = ["--model_name_or_path", checkpoint_of("GPT2", tmp_path / "stock", initializer_range=0.3), *bert[2:]]
    words = ["--max_steps", "3", "--keep_signs", "true", "--output_dir", str(tmp_path / "healed")]
    assert 0 < main([*options, *RUN, *words])["eval_relative_error"] < 2
    assert change_without_negatives(tmp_path / "healed", {"input_ids": torch.arange(5, 15)[None]}) > 0


@pytest.mark.parametrize(
    ("head", "words", "expected", "joined"),
    [
        ("ForCausalLM", [], ("logits", "balanced", 0.2, True), True),
        ("ForCausalLM", ["--gradient_checkpointing"], ("logits", "balanced", 0.2, False), True),
        ("ForSequenceClassification", [], ("states", "tanhmax", 1.0, True), False),
    ],
)
def test_by_default_a_model_that_generates_text_is_healed_balanced_on_joined_texts_and_matches_predictions(
    head, words, expected, joined, bert, tmp_path
):
    save_texts(TEXT.split(), bert[3])
    asked, lengths = [], []

    class Spy(DistillationTrainer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            schedule = self._callback(NegativeMassSchedule)
            own = self.model.config.attn_activation
            lengths.extend(map(len, kwargs["train_dataset"]["input_ids"]))
            asked.append((kwargs["match"], own, schedule.end, kwargs["keep_signs"]))

    options = ["--model_name_or_path", checkpoint_of("Llama", tmp_path / "stock", head), *bert[2:], *RUN, *words]
    main([*options, "--max_steps", "1", "--output_dir", str(tmp_path / "healed")], trainer_class=Spy)
    assert asked == [expected]
    assert (max(lengths) > 20) == joined  # the texts are single words


def trainer_of(folder, place, **options):
    """A trainer whose student is at full negative mass."""
    student, teacher, _ = student_and_teacher(folder, None)
    student.config.attn_negative_mass = 1.0
    args = HealingArguments(output_dir=str(place / "run"), use_cpu=True, eval_strategy="no")
    return DistillationTrainer(model=student, teacher=teacher, args=args, **options)


@pytest.mark.parametrize(("mass", "penalised"), [(0.0, False), (1.0, True)])
def test_the_penalties_are_weighted_by_the_negative_mass(bert, tmp_path, mass, penalised):
    losses = []
    for keep_signs in (False, True):
        trainer = trainer_of(bert[1], tmp_path, keep_signs=keep_signs)
        trainer.model.config.attn_negative_mass = mass
        losses.append(trainer.compute_loss(trainer.model, {"input_ids": torch.arange(5, 25).view(2, 10)}))
    assert (losses[1] > losses[0] + 1e-3).item() == penalised


def test_predictions_are_matched_by_their_divergence_and_worse_ones_without_negatives_can_be_asked_for(tmp_path):
    trainer = trainer_of(checkpoint_of("Llama", tmp_path / "stock", "ForCausalLM"), tmp_path, match="logits")
    inputs = {"input_ids": torch.arange(5, 25).view(2, 10)}
    model, teacher = trainer.model, trainer.teacher
    with torch.no_grad():
        ours, theirs = (one(**inputs).logits.log_softmax(-1) for one in (model, teacher))
        with without_negatives(model):
            without = model(**inputs).logits.log_softmax(-1)
    distance, further = ((theirs.exp() * (theirs - x)).sum(-1).mean() for x in (ours, without))
    torch.testing.assert_close(trainer.compute_loss(model, inputs), distance)
    trainer.keep_signs, trainer.further = True, 5.0
    torch.testing.assert_close(trainer.compute_loss(model, inputs), 2 * distance + 5 - further)


def test_a_model_that_predicts_nothing_matches_states_only(bert, tmp_path):
    trainer = trainer_of(bert[1], tmp_path, match="logits")
    with pytest.raises(InputError, match="expected match states for a model that returns"):
        trainer.compute_loss(trainer.model, {"input_ids": torch.arange(5, 25).view(2, 10)})


def test_a_recurrent_softmax_model_of_this_package_is_healed_without_the_penalties(bert, tmp_path):
    save_texts(["a", "good", "film", "and", "bad", "story"], bert[3])
    card = Path(__file__).parents[2] / "model_cards/sst2-rnn-softmax"
    options = [*bert[2:], *RUN, "--max_steps", "2", "--output_dir", str(tmp_path / "out")]
    main(["--model_name_or_path", str(card), *options])
    assert open_checkpoint(tmp_path / "out").model().config.attn_activation == "tanhmax"
    with pytest.raises(InputError, match="keep_signs false for BidirRnnForSequenceClassification"):
        main(["--model_name_or_path", str(card), *options, "--keep_signs", "true"])


def test_the_embeddings_stay_the_teacher_s(healed):
    before, after = (load_file(folder / "model.safetensors") for folder in (healed[1].parent / "bert", healed[1]))
    name = "embeddings.word_embeddings.weight"
    torch.testing.assert_close(after[name], before[name])
    assert not torch.equal(after["encoder.layer.0.output.dense.weight"], before["encoder.layer.0.output.dense.weight"])


def test_healing_goes_on_from_a_healed_student_with_its_teacher_named(healed, tmp_path):
    options, folder, error = healed
    again = [*options, *RUN, "--model_name_or_path", str(folder), "--learning_rate", "3e-3", "--keep_signs", "false"]
    again += ["--output_dir", str(tmp_path / "more")]
    with pytest.raises(InputError, match="--teacher_name_or_path"):
        main(again)
    with pytest.raises(InputError, match="was trained with tanhmax, which cannot become balanced"):
        student_and_teacher(str(folder), options[1], "balanced")
    assert main([*again, "--teacher_name_or_path", options[1]])["eval_relative_error"] < error


@pytest.mark.parametrize("family", ["GPT2", "Llama", "Dinov2", "Electra"])
def test_what_comes_before_the_first_layer_and_nothing_else_is_frozen(family, tmp_path):
    student = trainer_of(checkpoint_of(family, tmp_path / "stock"), tmp_path).model
    frozen = {name.partition(".")[0] for name, p in student.named_parameters() if not p.requires_grad}
    embeddings = {"GPT2": {"wte", "wpe"}, "Llama": {"embed_tokens"}, "Electra": {"embeddings", "embeddings_project"}}
    assert frozen == embeddings.get(family, {"embeddings"})


def test_spans_are_matched_as_logits(bert, tmp_path):
    BertForQuestionAnswering(BertConfig(**SHAPE, vocab_size=45)).save_pretrained(tmp_path / "bert")
    results = main([*bert, *RUN, "--max_steps", "2", "--output_dir", str(tmp_path / "healed")])
    states = SHAPE["num_hidden_layers"] + 2  # and where a span starts and ends
    assert sum(name.startswith("eval_relative_error_") for name in results) == states


def test_padding_does_not_count(bert, tmp_path):
    """The error of a batch of sentences is that of the sentences alone, added up."""
    trainer = trainer_of(bert[1], tmp_path)
    long, short = torch.arange(5, 13)[None], torch.arange(20, 23)[None]
    batch = {"input_ids": torch.zeros(2, 8, dtype=torch.long), "attention_mask": torch.zeros(2, 8, dtype=torch.long)}
    for row, ids in enumerate((long, short)):
        batch["input_ids"][row, : ids.shape[1]], batch["attention_mask"][row, : ids.shape[1]] = ids, 1
    _, together, norms = trainer.prediction_step(trainer.model, batch)
    for row, ids in enumerate((long, short)):
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        _, alone, norm = trainer.prediction_step(trainer.model, inputs)
        torch.testing.assert_close((together[row], norms[row]), (alone[0], norm[0]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gradient_checkpointing --keep_signs true", "expected keep_signs false with gradient_checkpointing"),
        ("--max_length 600", "at most 512"),
        ("--negative_mass_until 1.5", r"expected until as a share of training, 0 to 1; got 1\.5"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_is_trained(bert, tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        main([*bert, *RUN, *shlex.split(words), "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out/model.safetensors").exists()


@pytest.mark.parametrize(
    ("family", "head", "message"),
    [
        ("Electra", "ForMultipleChoice", "ranks choices"),
        ("Bart", "Model", "BartModel, an encoder-decoder; only encoders"),
        ("Electra", "ForSequenceClassification", "teacher of the student's shape"),
    ],
)
def test_a_student_that_cannot_be_healed_is_refused(tmp_path, family, head, message):
    student = checkpoint_of(family, tmp_path / "student", head)
    teacher = checkpoint_of(family, tmp_path / "teacher") if "teacher" in message else None
    with pytest.raises(InputError, match=message):
        student_and_teacher(student, teacher)


def test_continuing_a_checkpoint_with_another_schedule_is_refused(healed, tmp_path):
    options, folder, _ = healed
    words = ["--resume_from_checkpoint", str(folder / "checkpoint-20"), "--negative_mass_until", "0.9"]
    with pytest.raises(InputError, match="resume with the schedule of the checkpoint"):
        main([*options, *RUN, *words, "--output_dir", str(tmp_path / "other")])


def test_convert_heals_in_one_command_and_writes_the_card(bert, tmp_path):
    Path(tmp_path, "bert/modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    Path(tmp_path, "bert/README.md").write_text("---\nlicense: mit\n---\nA softmax model.")
    words = [bert[1], str(tmp_path / "healed"), "--heal", bert[3], "--steps", "3", "--attn-activation", "balanced"]
    told = CliRunner().invoke(app, ["convert", *words, "--negative-mass", "0.5"])
    assert told.exit_code == 0, told.output
    config = json.loads((tmp_path / "healed/config.json").read_text())
    assert (config["attn_activation"], config["attn_negative_mass"]) == ("balanced", 0.5)
    card = (tmp_path / "healed/README.md").read_text()
    assert ("healed" in card, "license: mit" in card, "A softmax model" in card) == (True, True, False)
    assert (tmp_path / "healed/modules.json").is_file()


def test_convert_heals_on_the_column_that_is_named_and_names_its_own_options_in_errors(bert, tmp_path):
    Dataset.from_dict({"review": ["w1 w2 w3"] * 120}).to_csv(str(tmp_path / "reviews.csv"))
    words = ["convert", bert[1], str(tmp_path / "healed"), "--heal", str(tmp_path / "reviews.csv"), "--steps", "1"]
    for more, message in (([], "--text_column"), (["--to-softmax"], "--to-softmax cannot be combined")):
        told = CliRunner().invoke(app, [*words, *more])
        assert (told.exit_code, message in told.stderr) == (2, True), told.output
        assert not (tmp_path / "healed").exists()
    told = CliRunner().invoke(app, [*words, "--text_column", "review"])
    assert told.exit_code == 0, told.output
    recipe = json.loads((tmp_path / "healed/run.json").read_text())["recipe"]
    assert (recipe["text_column"], "image_column" in recipe) == ("review", False)
    told = CliRunner().invoke(app, [*words, "--text_column", "review"])
    message = "holds a finished run"
    assert (told.exit_code, message in told.stderr) == (2, True)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["w1 w2"] * 30, "at least 200 tokens of text to heal with, .*; got 1[0-9][0-9]"),
        (["добрый день"] * 200, r"does not know \d\d% of the texts' pieces"),
    ],
    ids=["too few", "another language"],
)
def test_texts_that_cannot_heal_are_refused(bert, tmp_path, texts, message):
    Dataset.from_dict({"text": texts}).to_parquet(bert[3])
    with pytest.raises(InputError, match=message):
        main([*bert, *RUN, "--output_dir", str(tmp_path / "healed")])
    assert not (tmp_path / "healed").exists()


def test_pieces_of_one_letter_are_reported_as_a_language_that_may_be_unknown(bert, tmp_path, caplog):
    save_texts(["a"], bert[3])
    main([
        "--model_name_or_path", checkpoint_of("ModernBert", tmp_path / "stock"), *bert[2:], *RUN, "--max_steps", "1",
        "--output_dir", str(tmp_path / "healed"),
    ])  # fmt: skip
    assert "into pieces of 1.0 characters; the model may not know their language" in caplog.text
