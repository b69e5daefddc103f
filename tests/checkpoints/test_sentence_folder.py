"""A folder of sentence-transformers stays one, and embeds as before at λ = 0."""

import json
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import BertForMaskedLM, T5Config, T5EncoderModel

from hf_bidir import convert_checkpoint
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.hub.card import build_model_card
from hf_bidir.hub.push import stage
from tests.hub_server import Hub
from tests.hub_user import alice
from tests.processes import run_python
from tests.sentence_models import SENTENCES, sentence_model

ALONE = """
import json, sys
sys.modules["hf_bidir"] = None
import torch
from sentence_transformers import SentenceTransformer
for number, folder in enumerate(sys.argv[2:]):
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    torch.save(model.encode(json.loads(sys.argv[1]), prompt_name="query", convert_to_tensor=True), f"{number}.pt")
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder, and the vectors of the sentences with a prompt."""
    pytest.importorskip("sentence_transformers")
    return sentence_model(tmp_path_factory.mktemp("sentences"))


@pytest.fixture(scope="module")
def nested(source, tmp_path_factory):
    """The same with the transformer in a folder of its own, as early versions saved it, and the pooling deeper."""
    folder = tmp_path_factory.mktemp("nested") / "st"
    shutil.copytree(source[0], folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json", "README.md", "LICENSE"):
            file.rename(inner / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules").mkdir()
    (folder / modules[1]["path"]).rename(folder / "modules/pooling")
    modules[1]["path"] = "modules/pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder, source[1]


def vectors_elsewhere(place, *folders):
    """Sentence vectors from a process without hf_bidir, with only the folders."""
    environment = {"HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1"}
    run_python(ALONE, json.dumps(SENTENCES), *folders, isolated=True, cwd=place, **environment)
    return [torch.load(place / f"{number}.pt") for number in range(len(folders))]


@pytest.fixture(scope="module")
def converted(source, nested, tmp_path_factory):
    """Folders converted from both layouts, with negative mass, and staged to be published; with their vectors."""
    place = tmp_path_factory.mktemp("converted")
    folders = {
        "source": convert_checkpoint(source[0], place / "source"),
        "nested": convert_checkpoint(nested[0], place / "nested"),
        "negative mass": convert_checkpoint(source[0], place / "negative", negative_mass=1.0),
    }
    folders["staged"] = stage(folders["source"], place / "staged")
    vectors = vectors_elsewhere(place, *folders.values())
    return {name: (folders[name], vectors[number]) for number, name in enumerate(folders)}


@pytest.mark.parametrize("layout", ["source", "nested"])
def test_a_converted_folder_embeds_equally_where_hf_bidir_is_not_installed(layout, request, converted):
    _, vectors = converted[layout]
    torch.testing.assert_close(vectors, request.getfixturevalue(layout)[1], rtol=0, atol=1e-6)


def test_the_card_of_the_source_comes_along_below_a_note_and_its_licence_too(source, converted):
    folder, stock = converted["nested"][0], source[0]
    ours, theirs = (ModelCard.load(place / "README.md") for place in (folder, stock))
    assert ours.data.to_dict() == theirs.data.to_dict()
    assert ours.text.startswith("\n> Signed by hf_bidir: attention activation `tanhmax`, negative mass λ = 0.0.")
    assert ours.text.endswith(theirs.text)
    assert (folder / "LICENSE").read_text() == "Apache-2.0"


def test_the_class_in_the_config_may_be_another_than_the_one_that_embeds(source, tmp_path):
    """The config of all-mpnet-base-v2 names a language model, but its weights have no such head."""
    folder = tmp_path / "st"
    shutil.copytree(source[0], folder)
    fields = json.loads((folder / "config.json").read_text()) | {"architectures": [BertForMaskedLM.__name__]}
    (folder / "config.json").write_text(json.dumps(fields))
    converted = convert_checkpoint(folder, tmp_path / "signed")
    assert json.loads((converted / "config.json").read_text())["architectures"] == ["BidirBertModel"]


def test_what_is_published_of_it_is_complete(source, converted):
    folder, vectors = converted["staged"]
    torch.testing.assert_close(vectors, source[1], rtol=0, atol=1e-6)
    card = build_model_card(folder, "me/vectors", "v1")
    assert 'model = SentenceTransformer("me/vectors", revision="v1", trust_remote_code=True)' in card.text
    assert card.data.library_name == "sentence-transformers"


def test_an_encoder_that_sentence_transformers_would_load_as_a_stock_one_is_refused(source, tmp_path):
    T5EncoderModel(T5Config(vocab_size=9, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(
        tmp_path / "st"
    )
    shutil.copyfile(source[0] / "modules.json", tmp_path / "st/modules.json")
    with pytest.raises(ValueError, match="always loads t5 models with stock classes"):
        convert_checkpoint(tmp_path / "st", tmp_path / "out")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"path": "inside/../../elsewhere", "type": "models.Transformer"}, "outside its folder"),
        ({"path": "/elsewhere", "type": "models.Transformer"}, "outside its folder"),
        ({"path": "1_Pooling", "type": "models.Pooling"}, "without a Transformer"),
    ],
)
def test_a_folder_with_modules_outside_or_without_a_transformer_is_refused(module, message, tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(ValueError, match=message):
        sentence_folder(tmp_path)


def test_a_name_on_the_hub_is_converted_with_all_its_files(source, converted, tmp_path):
    files = {file.relative_to(source[0]).as_posix(): file.read_bytes() for file in source[0].rglob("*.*")}
    files["2_Dense/pytorch_model.bin"] = b"older weights"
    with Hub({"hf_alice": "alice"}) as hub, alice(hub, tmp_path / "home") as run:
        hub.create("alice/st", files)
        done = run("convert", "alice/st", tmp_path / "out")
    assert done.exit_code == 0, done.output
    expected = converted["source"][0]
    for file in expected.rglob("*.*"):
        if file.suffix != ".py":
            assert (tmp_path / "out" / file.relative_to(expected)).read_bytes() == file.read_bytes(), file
    assert (tmp_path / "out/2_Dense/pytorch_model.bin").read_bytes() == b"older weights"
