"""Healing brings a converted model close to its teacher, on texts and images, and can be resumed."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BertTokenizerFast, ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from hf_bidir.checkpoints.layer_hooks import without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.cli import app
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import StepArguments
from hf_bidir.finetune.both_signs import one_sidedness
from hf_bidir.finetune.data.image_data import new_image_processor
from hf_bidir.finetune.distillation import DistillationTrainer
from hf_bidir.finetune.heal import steps_for, student_and_teacher
from tests.training.checkpoints_of_others import TEXT, checkpoint_of
from tests.training.conftest import read
from training.distill import main

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RUN = shlex.split(
    "--max_steps 40 --per_device_train_batch_size 8 --learning_rate 1e-2 --use_cpu --disable_tqdm true --eval_steps 20 "
    "--save_steps 20"
)
WORDS = [f"w{index}" for index in range(40)]


def save_texts(words, file):
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, size)) for size in generator.integers(4, 12, 300)]
    Dataset.from_dict({"text": texts}).to_parquet(str(file))
    return ["--train_file", str(file)]


def bert_in(place):
    """Options that name a softmax BERT, whose attention is far from uniform, and a text of random words."""
    folder = place / "bert"
    torch.manual_seed(0)
    BertModel(BertConfig(**SHAPE, vocab_size=45, initializer_range=0.3)).save_pretrained(folder)
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(folder)
    return ["--model_name_or_path", str(folder), *save_texts(WORDS, place / "texts.parquet")]


@pytest.fixture
def bert(tmp_path):
    return bert_in(tmp_path)


@pytest.fixture(scope="module")
def healed(tmp_path_factory):
    """The options of a healing of BERT without penalties, its folder, and its error."""
    place = tmp_path_factory.mktemp("healed")
    options = bert_in(place)
    results = main([*options, *RUN, "--output_dir", str(place / "healed")])
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


def test_healing_brings_the_student_close_to_its_teacher_at_full_negative_mass(healed, tmp_path):
    options, folder, error = healed
    still = shlex.split("--max_steps 1 --learning_rate 0 --warmup_ratio 0 --centre false --output_dir")
    untrained = main([*options, *RUN, *still, str(tmp_path)])
    assert error < 0.5 * untrained["eval_relative_error"]
    assert read(folder / "config.json")["attn_negative_mass"] == 1.0


def test_healing_goes_on_where_predictions_come_no_closer_and_keeps_the_first_of_equal_checkpoints(bert, tmp_path):
    still = shlex.split("--learning_rate 0 --max_steps 10 --eval_steps 2 --save_steps 2 --output_dir")
    main([*bert, *RUN, *still, str(tmp_path / "out")])
    assert read(tmp_path / "out/run.json")["best_checkpoint"] == "checkpoint-2"
    assert (tmp_path / "out/checkpoint-10").is_dir()


@pytest.mark.parametrize(("rows", "steps"), [(500, 300), (12_000, 500), (150_000, 1000)])
def test_few_texts_are_read_several_times_and_of_many_a_part(rows, steps):
    assert steps_for(rows, StepArguments("unused", use_cpu=True)) == steps


def test_a_classifier_of_images_is_healed_and_its_interrupted_healing_continues_to_the_same_weights(
    vit, tmp_path, crash
):
    brief = [*vit, *RUN, *shlex.split("--flip --shift 1 --max_steps 20 --eval_steps 10 --save_steps 10 --output_dir")]
    main([*brief, str(tmp_path / "whole")])
    log = read(tmp_path / "whole/checkpoint-20/trainer_state.json")["log_history"]
    errors = [entry["eval_relative_error"] for entry in log if "eval_relative_error" in entry]
    assert errors[-1] < errors[0]
    crash(main, [*brief, str(tmp_path / "crashed")], after_steps=15)
    main([*brief, str(tmp_path / "crashed")])
    whole, crashed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "crashed"))
    assert all(torch.equal(crashed[name], weight) for name, weight in whole.items())


@pytest.mark.parametrize(
    ("head", "expected", "joined"),
    [
        ("ForCausalLM", ("logits", "balanced", 0.2, False), True),
        ("ForSequenceClassification", ("states", "tanhmax", 1.0, False), False),
    ],
)
def test_by_default_a_model_that_generates_text_is_healed_balanced_on_joined_texts_and_matches_predictions(
    head, expected, joined, tmp_path, monkeypatch
):
    texts = save_texts(TEXT.split(), tmp_path / "texts.parquet")
    trainers = []

    class Spy(DistillationTrainer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            trainers.append(self)

    monkeypatch.setattr("hf_bidir.finetune.heal.DistillationTrainer", Spy)
    start = ["--model_name_or_path", checkpoint_of("Llama", tmp_path / "stock", head)]
    brief = shlex.split("--max_steps 1 --eval_strategy no --save_strategy no --eval_on_start false")
    main([*start, *texts, *RUN, *brief, "--output_dir", str(tmp_path / "healed")])
    trainer, config = trainers[0], trainers[0].model.config
    chosen = (trainer.match, config.attn_activation, config.attn_negative_mass, trainer.keep_signs)
    assert chosen == expected
    assert (max(map(len, trainer.train_dataset["input_ids"])) > 20) == joined  # the texts are single words


def trainer_of(folder, place, **options):
    """A trainer whose student is at full negative mass."""
    student, teacher, _ = student_and_teacher(folder, None)
    student.config.attn_negative_mass = 1.0
    args = StepArguments(output_dir=str(place / "run"), use_cpu=True, eval_strategy="no")
    return DistillationTrainer(model=student, teacher=teacher, args=args, **options)


@pytest.mark.parametrize("mass", [0.0, 0.5])
def test_the_loss_is_the_error_of_the_states_and_penalties_weighted_by_the_negative_mass(bert, tmp_path, mass):
    trainer = trainer_of(bert[1], tmp_path, keep_signs=True)
    model, inputs = trainer.model, {"input_ids": torch.arange(5, 25).view(2, 10)}
    model.config.attn_negative_mass = mass
    teacher = trainer.teacher(**inputs, output_hidden_states=True).hidden_states
    with one_sidedness(model, None, 3.0) as penalties:
        student = model(**inputs, output_hidden_states=True).hidden_states
    with without_negatives(model):
        positive = model(**inputs, output_hidden_states=True).hidden_states

    def errors(states):
        """The mean over tokens of the relative error of each layer."""
        pairs = zip(states[1:], teacher[1:], strict=True)
        return torch.stack([((x - y).square().sum(-1) / y.square().sum(-1)).mean() for x, y in pairs])

    needed = 0.2 * (0.5 - errors(positive)[-1]).clamp_min(0)
    expected = errors(student).mean() + mass * (0.1 * torch.stack(penalties).mean() + needed)
    torch.testing.assert_close(trainer.compute_loss(model, inputs), expected)


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


def test_a_recurrent_softmax_model_of_this_package_is_healed(tmp_path):
    texts = save_texts(["a", "good", "film", "and", "bad", "story"], tmp_path / "texts.parquet")
    card = Path(__file__).parents[2] / "model_cards/sst2-rnn-softmax"
    options = [*texts, *RUN, "--max_steps", "2", "--output_dir", str(tmp_path / "out")]
    main(["--model_name_or_path", str(card), *options])
    assert open_checkpoint(tmp_path / "out").model().config.attn_activation == "tanhmax"


def test_healing_goes_on_from_a_healed_student_with_its_teacher_named(healed, tmp_path):
    options, folder, error = healed
    again = ["--model_name_or_path", str(folder), "--learning_rate", "3e-3"]
    again = [*options, *RUN, *again, "--output_dir", str(tmp_path)]
    with pytest.raises(InputError, match="--teacher_name_or_path"):
        main(again)
    with pytest.raises(InputError, match="cannot become balanced"):
        student_and_teacher(str(folder), options[1], "balanced")
    assert main([*again, "--teacher_name_or_path", options[1]])["eval_relative_error"] < error


EMBEDDINGS = {
    "GPT2": {"wte", "wpe"},
    "Dinov2": {"embeddings"},
    "Electra": {"embeddings", "embeddings_project"},
}


@pytest.mark.parametrize("family", EMBEDDINGS)
def test_what_comes_before_the_first_layer_and_nothing_else_is_frozen(family, tmp_path):
    student = trainer_of(checkpoint_of(family, tmp_path / "stock"), tmp_path).model
    frozen = {name.partition(".")[0] for name, p in student.named_parameters() if not p.requires_grad}
    assert frozen == EMBEDDINGS[family]


def test_penalties_are_refused_where_layers_run_in_threads_of_several_gpus():
    with pytest.raises(InputError, match="keep_signs false with several GPUs"):
        DistillationTrainer(teacher=None, keep_signs=True, model=None, args=SimpleNamespace(n_gpu=2))


@pytest.mark.parametrize(
    ("family", "head", "message"),
    [
        ("Bart", "Model", "an encoder-decoder"),
        ("Electra", "ForSequenceClassification", "teacher of the student's shape"),
    ],
)
def test_a_student_that_cannot_be_healed_is_refused(tmp_path, family, head, message):
    student = checkpoint_of(family, tmp_path / "student", head)
    teacher = checkpoint_of(family, tmp_path / "teacher") if "teacher" in message else None
    with pytest.raises(InputError, match=message):
        student_and_teacher(student, teacher)


def test_convert_heals_in_one_command_and_writes_the_card(bert, tmp_path):
    Path(tmp_path, "bert/modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    Path(tmp_path, "bert/README.md").write_text("---\nlicense: mit\n---\nA softmax model.")
    words = [bert[1], str(tmp_path / "healed"), "--heal", bert[3], "--steps", "3", "--attn-activation", "balanced"]
    told = CliRunner().invoke(app, ["convert", *words, "--negative-mass", "0.5"])
    assert told.exit_code == 0, told.output
    config = read(tmp_path / "healed/config.json")
    assert (config["attn_activation"], config["attn_negative_mass"]) == ("balanced", 0.5)
    card = (tmp_path / "healed/README.md").read_text()
    assert ("healed" in card, "license: mit" in card, "A softmax model" in card) == (True, True, False)
    assert (tmp_path / "healed/modules.json").is_file()
