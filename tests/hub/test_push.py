"""push_checkpoint, through the real client, against a Hub on loopback."""

import json
import shutil

import peft
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForSequenceClassification

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.finetune.record import size
from hf_bidir.hub import push, push_checkpoint
from hf_bidir.hub.push import code_files, stage
from tests.hub_server import Hub
from tests.hub_user import alice, stranger
from tests.tiny_models import WORDS, stock_model, word_tokenizer

TOKENS = {"hf_alice": "alice", "hf_reader": "alice (read)"}


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
    """A Hub on which alice has published the folder, and the function that runs her commands."""
    with Hub(TOKENS) as hub, alice(hub, tmp_path_factory.mktemp("alice")) as run:
        done = run("push", folder, "alice/tiny")
        assert done.exit_code == 0, done.output
        assert "Published: " in done.stdout
        yield hub, run


@pytest.fixture(scope="module")
def repository(published):
    return published[0].repositories["alice/tiny"]


@pytest.fixture(scope="module")
def tag(repository):
    """The tag of the content that alice has published."""
    (tag,) = repository.tags
    return tag


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
    with pytest.raises(ValueError, match=rf"{folder}, which others do not have"):
        stage(place, place.parent / "staged")
    pushed = []
    for base in ("alice/missing", "alice/tiny"):
        (place / "run.json").write_text(json.dumps(size(model) | {"recipe": {"base_model": base}}))
        pushed.append(published[1]("push", place, "alice/lora"))
    assert "base, alice/missing, has to be on the Hub first" in pushed[0].stderr
    assert pushed[1].exit_code == 0, pushed[1].stderr
    return place


STRANGER = r"""
import re, sys
sys.modules["hf_bidir"] = None
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, pipeline

def follow(name):
    blocks, variables = re.findall(r"```python\n(.*?)```", ModelCard.load(name).text, re.DOTALL), {}
    exec("".join(block for block in blocks if "hf_bidir" not in block), variables)
    return variables | {"revision": re.search(r'revision="(.*?)"', blocks[0])[1]}

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
def loaded(published, tag, adapter, tmp_path_factory):
    """What a user without hf_bidir loads and prints: the folder of tensors, and the lines."""
    place = tmp_path_factory.mktemp("stranger")
    return place, stranger(published[0], place / "home", STRANGER, place, "main", tag)


def test_what_is_pushed_loads_by_branch_and_tag_and_its_card_has_an_example_of_the_tag(loaded, folder, tag):
    original = load_file(folder / "model.safetensors")
    for number in range(2):
        tensors = load_file(loaded[0] / f"{number}.safetensors")
        assert tensors.keys() >= original.keys()
        assert all(torch.equal(tensors[name], value) for name, value in original.items())
    prediction, pipeline, _ = loaded[1]
    assert prediction.startswith("LABEL_")
    assert pipeline.split()[0] == tag


def test_an_adapter_is_pushed_alone_and_its_card_loads_it_on_a_commit_of_its_base(published, loaded, adapter):
    hub = published[0]
    files = hub.repositories["alice/lora"].at("main")
    assert {name for name in files if name.endswith((".safetensors", ".py", "config.json"))} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer_config.json",
    }
    config = json.loads(files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "alice/tiny"
    assert config["revision"] in hub.repositories["alice/tiny"].commits
    data = ModelCard(files["README.md"].decode()).data
    assert (data.base_model, data["base_model_relation"], data.library_name) == ("alice/tiny", "adapter", "peft")
    assert "lora" in data.tags
    label, probability = loaded[1][-1].split()
    inputs = AutoTokenizer.from_pretrained(adapter)("a charming film", return_tensors="pt")
    expected = open_checkpoint(adapter).model()(**inputs).logits.softmax(-1).max().item()
    assert label in ("good", "bad", "new")
    assert float(probability) == pytest.approx(expected, abs=1e-4)


def test_an_adapter_of_a_stock_model_is_published_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(push, "_pin_base", lambda adapter, target: None)  # as if "base" were on the Hub
    stock_model("bert").save_pretrained("base")
    model = BertForSequenceClassification.from_pretrained("base")
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS"))
    model.save_pretrained("lora")
    (tmp_path / "lora/README.md").unlink()  # peft's own
    (tmp_path / "lora/run.json").write_text(json.dumps(size(model)))
    card = (stage("lora", tmp_path / "staged", "alice/stock-lora") / "README.md").read_text()
    assert "for the softmax model" in card
    assert "trust_remote_code" not in card


def test_a_published_checkpoint_is_measured_by_its_name(published, tag, tmp_path):
    (tmp_path / "test.csv").write_text("text,label\na good film,1\na bad film,0\n")
    told = published[1]("evaluate", "alice/tiny", "--revision", tag, "--data", tmp_path / "test.csv")
    assert "test.csv (test, 2 rows)" in told.stdout, told.stderr


def test_a_folder_with_a_stock_checkpoint_or_none_is_refused(tmp_path):
    stock_model("bert").save_pretrained(tmp_path / "stock")
    with pytest.raises(ValueError, match="bert; hf-bidir convert"):
        stage(tmp_path / "stock", tmp_path / "staged")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        push_checkpoint(tmp_path, "alice/tiny", dry_run=True)


def test_an_unchanged_folder_makes_no_commit(published, repository, folder, tag):
    before = dict(repository.commits)
    assert published[1]("push", folder, "alice/tiny").exit_code == 0
    assert repository.commits == before
    assert list(repository.tags) == [tag]


def test_what_a_person_wrote_on_the_hub_stays_when_the_card_is_renewed(published, repository, folder):
    card = repository.at("main")["README.md"].decode().replace("negative mass λ = 1.0", "negative mass λ = 7.0")
    card = card.replace("library_name:", "license: mit\nlibrary_name:", 1) + "\nRead our paper.\n"
    repository.add(repository.at("main") | {"README.md": card.encode()})
    assert published[1]("push", folder, "alice/tiny").exit_code == 0
    renewed = repository.at("main")["README.md"].decode()
    assert "Read our paper." in renewed
    assert "license: mit" in renewed
    assert "λ = 7.0" not in renewed


def test_a_branch_leaves_the_main_branch_alone_and_other_scores_keep_the_tag(
    published, repository, folder, tag, tmp_path
):
    before = repository.branches["main"]
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / "all_results.json").write_text('{"test_accuracy": 0.75}')
    done = published[1]("push", tmp_path / "tiny", "alice/tiny", "--revision", "dev")
    assert done.exit_code == 0, done.stderr
    assert repository.branches["main"] == before
    assert "all_results.json" in repository.at("dev")
    assert list(repository.tags) == [tag]


def test_a_new_repository_is_private_on_request(published, folder):
    assert published[1]("push", folder, "alice/hidden", "--private").exit_code == 0
    assert published[0].repositories["alice/hidden"].private
    assert not published[0].repositories["alice/tiny"].private


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_unknown", "error: nothing was uploaded: "), ("hf_reader", "error: no commit was made: ")],
)
def test_a_token_without_permission_is_one_line_that_says_what_was_done(published, folder, token, message):
    refused = published[1]("push", folder, "alice/tiny", HF_TOKEN=token)
    assert (refused.exit_code, refused.stderr.strip().splitlines()[-1].startswith(message)) == (2, True)
    assert token not in refused.stderr


def test_a_failure_of_the_server_is_one_line_and_leaves_the_repository_as_it_was(published, folder):
    hub, run = published
    hub.fault = "/commit/", 500
    failed = run("push", folder, "alice/faulty")
    assert failed.stderr.strip().splitlines()[-1].startswith("error: no commit was made: ")
    assert "hf_alice" not in failed.stderr
    repository = hub.repositories["alice/faulty"]
    assert repository.at("main").keys() == {".gitattributes"}
    hub.fault = None
    assert run("push", folder, "alice/faulty").exit_code == 0
    assert {"model.safetensors", "config.json", "README.md"} <= repository.at("main").keys()


def test_a_dry_run_prints_files_and_card_and_asks_the_hub_for_nothing(published, folder):
    asked = len(published[0].requests)
    done = published[1]("push", folder, "alice/dry", "--dry-run", HF_TOKEN="")
    size = (folder / "model.safetensors").stat().st_size
    for fact in (f"{size:,}  model.safetensors", '("alice/dry", revision="content-'):
        assert fact in done.stdout
    assert len(published[0].requests) == asked


@pytest.fixture
def quick(monkeypatch):
    """Staging without the clean process, for what is refused before it or does not concern it."""
    monkeypatch.setattr(push, "_check_alone", lambda checkpoint, staged: None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", b'{"notes": ["see /home/me/data"]}', r"run\.json .*/home/me/data"),
        ("run.json", b'{"notes": ["hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}', r"run\.json .*token"),
        ("vocab.txt", b"f\xfcr\nhf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", r"vocab\.txt .*token"),
    ],
)
def test_what_must_not_be_published_is_refused(folder, tmp_path, quick, name, content, message):
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        stage(tmp_path / "tiny", tmp_path / "staged")


def test_a_word_of_a_vocabulary_may_look_like_a_path(folder, tmp_path, quick):
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny/vocab.txt").write_text("/home/me")
    assert (stage(tmp_path / "tiny", tmp_path / "staged") / "vocab.txt").is_file()


def test_a_checkpoint_that_computes_something_else_alone_is_refused(folder, tmp_path, monkeypatch):
    def different(staged, auto, inputs):
        return {"logits": open_checkpoint(folder).model()(**inputs).logits + 1}

    monkeypatch.setattr(push, "isolated_forward", different)
    with pytest.raises(ValueError, match=r"differ by 1\.0"):
        stage(folder, tmp_path / "staged")


def test_an_untidy_folder_is_published_with_the_code_of_the_package_and_nothing_that_can_run(folder, tmp_path):
    source = shutil.copytree(folder, tmp_path / "tiny")
    BidirBertForSequenceClassification.from_pretrained(folder).bfloat16().save_pretrained(source)
    for name in ("training_args.bin", "weights.pkl", "model.py", "activations.py"):
        (source / name).write_text("print('changed')")
    (source / "modeling_bidir.py").unlink()
    staged = stage(source, tmp_path / "staged")
    code = code_files(BidirBertConfig().auto_map)
    assert {file.name: file.read_bytes() for file in staged.glob("*.py")} == {f.name: f.read_bytes() for f in code}
    assert not {file.suffix for file in staged.iterdir()} & {".bin", ".pkl"}
    assert (staged / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
