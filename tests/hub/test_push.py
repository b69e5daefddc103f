"""push_checkpoint, through the real client, against a Hub on loopback."""

import json
import shutil
import zipfile
from pathlib import Path

import peft
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, signed
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.finetune.record import size
from hf_bidir.hub import push, push_checkpoint
from hf_bidir.hub.push import MODELING, code_files, stage
from tests.hub_server import Hub
from tests.hub_user import User, start
from tests.tiny_models import WORDS, stock_model, word_tokenizer

ROOT = Path(__file__).parents[2]
TOKENS = {"hf_alice": "alice", "hf_reader": "alice (read)", "hf_bob": "bob"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BidirBertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **shape)
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    BidirBertForSequenceClassification(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def published(folder, tmp_path_factory):
    """A Hub on which alice has published the folder, with a tag; and alice."""
    with Hub(TOKENS) as hub, User(hub, tmp_path_factory.mktemp("alice") / "home") as alice:
        done = alice.run("push", folder, "alice/tiny", "--tag", "v1")
        assert done.returncode == 0, done.stderr
        assert "Published: " in done.stdout
        yield hub, alice


@pytest.fixture(scope="module")
def repository(published):
    return published[0].repositories["alice/tiny"]


@pytest.fixture(scope="module")
def push_with(published, folder):
    """Has alice push the folder with options."""
    return lambda *options, **settings: published[1].run("push", folder, "alice/tiny", *options, **settings)


@pytest.fixture(scope="module")
def adapter(published, folder, tmp_path_factory):
    """An adapter of alice/tiny with another head, which alice has pushed: its folder, trained on the local base."""
    torch.manual_seed(1)
    names = {"id2label": dict(enumerate(["good", "bad", "new"])), "label2id": {"good": 0, "bad": 1, "new": 2}}
    model = BidirBertForSequenceClassification.from_pretrained(folder, ignore_mismatched_sizes=True, **names)
    layers = {"target_modules": ["query", "value"], "r": 2, "init_lora_weights": False}
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **layers))
    place = tmp_path_factory.mktemp("adapters") / "lora"
    model.save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    (place / "run.json").write_text(json.dumps(size(model)))
    (place / "README.md").unlink()  # peft's own
    with pytest.raises(ValueError, match=r"is the folder .*, which others do not have\. Push it first"):
        stage(place, place.parent / "staged")
    renamed = shutil.copytree(place, place.parent / "renamed")
    config = renamed / "adapter_config.json"
    config.write_text(config.read_text().replace(str(folder), "alice/tiny"))
    pushed = published[1].run("push", renamed, "alice/lora")
    assert pushed.returncode == 0, pushed.stderr
    return place


STRANGER = """
import contextlib, io, sys
sys.modules["hf_bidir"] = None
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, pipeline

def follow(name):
    example, variables = ModelCard.load(name).text.partition("```python\\n")[2].partition("```")[0], {}
    exec(example, variables)
    return variables

for number, revision in enumerate(sys.argv[2:]):
    model = AutoModelForSequenceClassification.from_pretrained("alice/tiny", revision=revision, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    save_file(model.state_dict(), f"{sys.argv[1]}/{number}.safetensors")
variables = follow("alice/tiny")
print(variables["revision"], pipeline("text-classification", "alice/tiny", trust_remote_code=True)("a good film")[0])
base = follow("alice/lora")["model"].get_base_model()
assert type(base).__module__.startswith("transformers_modules"), type(base)
"""


@pytest.fixture(scope="module")
def stranger(published, repository, adapter, tmp_path_factory):
    """What a user without hf_bidir loads and prints: the folder of tensors, and the lines."""
    place = tmp_path_factory.mktemp("stranger")
    words = [place, "main", "v1", repository.tags["v1"]]
    process = start(published[0], STRANGER, *words, home=place / "home", token="hf_bob")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return place, stdout.splitlines()


def test_what_is_pushed_loads_by_branch_tag_and_commit_with_equal_tensors(stranger, folder):
    original = load_file(folder / "model.safetensors")
    for number in range(3):
        tensors = load_file(stranger[0] / f"{number}.safetensors")
        assert tensors.keys() >= original.keys()
        assert all(torch.equal(tensors[name], value) for name, value in original.items())


def test_the_example_of_the_card_loads_its_pinned_revision_and_a_pipeline_works(stranger, repository):
    label, line, _ = stranger[1]
    assert label.startswith("LABEL_")
    assert repository.tags[line.split()[0]] == repository.tags["v1"]


def test_an_adapter_is_pushed_alone_and_its_card_loads_it_on_its_base(published, stranger, adapter):
    files = published[0].repositories["alice/lora"].at("main")
    assert {name for name in files if name.endswith((".safetensors", ".py", "config.json"))} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer_config.json",
    }
    assert b"base_model: alice/tiny" in files["README.md"]
    label, probability = stranger[1][-1].split()
    inputs = AutoTokenizer.from_pretrained(adapter)("your text", return_tensors="pt")
    expected = open_checkpoint(adapter).model()(**inputs).logits.softmax(-1).max().item()
    assert label in ("good", "bad", "new")
    assert float(probability) == pytest.approx(expected, abs=1e-4)


def test_a_published_checkpoint_is_measured_by_its_name(published, tmp_path):
    (tmp_path / "test.csv").write_text("text,label\na good film,1\na bad film,0\n")
    told = published[1].run("evaluate", "alice/tiny", "--revision", "v1", "--data", tmp_path / "test.csv")
    assert told.returncode == 0, told.stderr
    assert "test.csv (test, 2 examples)" in told.stdout


def test_the_code_that_is_pushed_is_byte_equal_to_that_of_the_package(repository):
    files = repository.at("v1")
    code = {name: content for name, content in files.items() if name.endswith(".py")}
    assert code == {name: (MODELING / name).read_bytes() for name in code_files(BidirBertConfig().auto_map)}
    assert {"config.json", "model.safetensors", "README.md"} <= files.keys()


@pytest.fixture(scope="module")
def earlier(published, folder):
    """An earlier model of alice."""
    assert published[1].run("push", folder, "alice/earlier").returncode == 0
    return published[0].repositories["alice/earlier"]


def new_version(repository):
    return ModelCard(repository.at("main")["README.md"].decode()).data.get("new_version")


def test_a_stock_checkpoint_is_refused_with_the_way_to_a_signed_one(tmp_path):
    stock_model("bert").save_pretrained(tmp_path / "stock")
    (tmp_path / "staged").mkdir()
    with pytest.raises(ValueError, match="got the model type bert; hf-bidir convert makes a signed copy"):
        stage(tmp_path / "stock", tmp_path / "staged")


def test_the_card_of_the_predecessor_names_the_model_also_after_it_is_pushed_again(
    published, push_with, folder, earlier
):
    done = push_with("--replaces", "alice/earlier")
    assert done.returncode == 0, done.stderr
    assert published[1].run("push", folder, "alice/earlier").returncode == 0
    assert new_version(earlier) == "alice/tiny"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replaces", "alice/no-such"], "this account cannot see alice/no-such: it does not exist"),
        (["--replaces", "alice/tiny"], "expected the name of an earlier model"),
    ],
)
def test_a_predecessor_that_cannot_be_is_refused_before_the_upload(repository, push_with, options, message):
    before = dict(repository.branches)
    refused = push_with(*options, "--revision", "new")
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert repository.branches == before


def test_a_predecessor_that_may_not_be_changed_is_an_error_that_says_what_was_uploaded(published, push_with):
    published[0].create("bob/model", {"README.md": b"---\nlicense: mit\n---\nA model.\n"})
    refused = push_with("--replaces", "bob/model")
    *_, last = refused.stderr.strip().splitlines()
    message = (
        "error: the commit exists, but the card of bob/model does not name it: this token may not write to bob/model"
    )
    assert (refused.returncode, last.startswith(message)) == (2, True), refused.stderr


def test_an_int8_copy_of_a_published_checkpoint_names_it_as_its_base(published, tmp_path):
    done = published[1].run("quantise", "alice/tiny", tmp_path / "int8")
    assert done.returncode == 0, done.stderr
    assert published[1].run("card", tmp_path / "int8").returncode == 0
    data = ModelCard.load(tmp_path / "int8/README.md").data
    assert (data.base_model, data["base_model_relation"]) == ("alice/tiny", "quantized")


def test_an_unchanged_folder_makes_no_commit(repository, push_with):
    before = dict(repository.commits)
    assert push_with().returncode == 0
    assert repository.commits == before


def test_what_a_person_wrote_on_the_hub_stays_when_the_card_is_renewed(repository, push_with):
    card = repository.at("main")["README.md"].decode().replace("negative mass λ = 1.0", "negative mass λ = 7.0")
    card = card.replace("library_name:", "license: mit\nlibrary_name:", 1) + "\nRead our paper.\n"
    repository.add(repository.at("main") | {"README.md": card.encode()})
    assert push_with().returncode == 0
    renewed = repository.at("main")["README.md"].decode()
    assert "Read our paper." in renewed
    assert "license: mit" in renewed
    assert "λ = 7.0" not in renewed


def test_a_tag_that_is_taken_is_refused_before_anything_changes(repository, push_with):
    before = dict(repository.commits)
    refused = push_with("--tag", "v1")
    assert (refused.returncode, "has the tag v1 already; nothing was changed" in refused.stderr) == (2, True)
    assert repository.commits == before


def test_a_moved_content_tag_is_no_pin(repository, push_with):
    content, before = next(tag for tag in repository.tags if tag.startswith("content-")), dict(repository.tags)
    repository.tags[content] = repository.add(repository.at("main") | {"activations.py": b"print('mine')"}, "another")
    refused = push_with()
    repository.tags = before
    message = f"the tag {content}, which the card names, points to other"
    assert (refused.returncode, message in refused.stderr) == (2, True)


@pytest.mark.parametrize(("option", "branch"), [(["--revision", "dev"], "dev"), (["--create-pr"], "refs/pr/")])
def test_a_branch_or_a_pull_request_leaves_the_main_branch_alone(
    published, repository, folder, tmp_path, option, branch
):
    before = repository.branches["main"]
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / "all_results.json").write_text('{"test_accuracy": 0.75}')
    done = published[1].run("push", tmp_path / "tiny", "alice/tiny", *option)
    assert done.returncode == 0, done.stderr
    assert repository.branches["main"] == before
    made = next(name for name in repository.branches if name.startswith(branch))
    assert "all_results.json" in repository.at(made)


def test_a_new_repository_is_private_on_request(published, folder):
    assert published[1].run("push", folder, "alice/hidden", "--private").returncode == 0
    assert published[0].repositories["alice/hidden"].private


@pytest.mark.parametrize(
    ("token", "repo_id", "message"),
    [
        ("hf_unknown", "alice/tiny", "does not know this token"),
        ("", "alice/tiny", "no Hub token was found"),
        ("hf_reader", "alice/tiny", "may not write"),
        ("hf_bob", "alice/another", "may not write"),
    ],
)
def test_a_token_without_permission_is_one_line_with_advice(published, folder, token, repo_id, message):
    before = len(published[0].repositories)
    refused = published[1].run("push", folder, repo_id, HF_TOKEN=token)
    *_, last = refused.stderr.strip().splitlines()
    assert (refused.returncode, last.startswith("error: "), message in last) == (2, True, True), refused.stderr
    assert not token or token not in refused.stderr
    assert len(published[0].repositories) == before


def test_a_failure_of_the_server_is_one_line_and_leaves_the_repository_as_it_was(published, folder):
    hub, alice = published
    hub.uploads.clear()  # else no weights are sent
    for hub.fault in (("PUT", "/lfs/", None), ("POST", "/commit/", 500)):
        failed = alice.run("push", folder, "alice/faulty")
        *_, last = failed.stderr.strip().splitlines()
        assert (failed.returncode, last.startswith("error: "), "run the command again" in last) == (2, True, True), last
        assert "hf_alice" not in failed.stderr
        assert hub.repositories["alice/faulty"].at("main").keys() == {".gitattributes"}
    hub.fault = None
    assert alice.run("push", folder, "alice/faulty").returncode == 0
    assert {"model.safetensors", "config.json", "README.md"} <= hub.repositories["alice/faulty"].at("main").keys()


def test_a_dry_run_prints_files_card_and_options_and_asks_the_hub_for_nothing(published, folder):
    asked = len(published[0].requests)
    options = ["--replaces", "alice/earlier"]
    done = published[1].run("push", folder, "alice/dry", "--dry-run", *options, HF_TOKEN="")
    assert done.returncode == 0, done.stderr
    for fact in (
        *("model.safetensors", "bytes together", "Nothing was sent.", 'source, revision = "alice/dry"'),
        "The card of alice/earlier would name alice/dry as its new version.",
    ):
        assert fact in done.stdout
    assert len(published[0].requests) == asked


@pytest.fixture
def quick(monkeypatch):
    """Staging without the clean process, for what is refused before it or does not concern it."""
    monkeypatch.setattr(push, "_check_alone", lambda staged: None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("weights.bin", "x", r"holds weights\.bin: such files can run code"),
        ("model.py", "print()", r"model\.py is not model code of this hf_bidir"),
        ("run.json", json.dumps({"notes": ["see /home/me/data"]}), "run.json names a path of this machine"),
        ("run.json", json.dumps({"notes": ["hf_" + "x" * 30]}), "holds what looks like a Hub token"),
        ("vocab.txt", b"f\xfcr", r"vocab\.txt is not UTF-8"),
    ],
)
def test_what_must_not_be_published_is_refused(folder, tmp_path, quick, name, content, message):
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        stage(tmp_path / "tiny", tmp_path / "staged")


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a checkpoint folder"):
        push_checkpoint(tmp_path, "alice/tiny", dry_run=True)


def test_a_checkpoint_that_computes_something_else_alone_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        push, "isolated_forward", lambda _, __, inputs: {"logits": open_checkpoint(folder).model()(**inputs).logits + 1}
    )
    with pytest.raises(ValueError, match=r"in a clean process the checkpoint computes other outputs \(logits differs"):
        stage(folder, tmp_path / "staged")


def test_a_checkpoint_of_an_earlier_version_is_published_with_the_code_of_this_one(tmp_path):
    with zipfile.ZipFile(ROOT / "tests/fixtures/bert_of_version_0.1.zip") as archive:
        archive.extractall(tmp_path / "old")
    staged = stage(tmp_path / "old", tmp_path / "staged")  # which runs it where there is nothing else
    config = json.loads((staged.folder / "config.json").read_text())
    assert config["auto_map"]["AutoModel"] == "modeling_bidir.BidirBertModel"
    assert {name for name in staged.files if name.endswith(".py")} == set(code_files(config["auto_map"]))


@pytest.mark.parametrize(
    ("name", "auto_class"),
    [("Dinov2ForImageClassification", "AutoModelForImageClassification"), ("GPT2LMHeadModel", "AutoModelForCausalLM")],
)
def test_any_model_is_published_and_its_card_names_what_it_extends(name, auto_class, tmp_path, quick):
    shape = {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 16, "image_size": 28}
    special = {} if name.startswith("Dinov2") else {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
    head = getattr(transformers, name)
    signed(head(head.config_class(**shape, **special))).save_pretrained(tmp_path / "tiny")
    staged = stage(tmp_path / "tiny", tmp_path / "staged")
    assert f"`Bidir{name}` (signed attention in `{name}` of transformers)" in staged.card
    assert f"import {auto_class}\n" in staged.card


def test_an_untidy_folder_is_published_with_the_code_of_the_package_and_nothing_of_the_trainer(folder, tmp_path):
    source = tmp_path / "tiny"
    shutil.copytree(folder, source)
    BidirBertForSequenceClassification.from_pretrained(folder).bfloat16().save_pretrained(source)
    (source / "training_args.bin").write_text("x")
    (source / "activations.py").write_text("print('changed')")
    (source / "modeling_bidir.py").unlink()
    staged = stage(source, tmp_path / "staged")
    assert "training_args.bin" not in staged.files
    assert (staged.folder / "activations.py").read_bytes() == (MODELING / "activations.py").read_bytes()
    assert (staged.folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
