"""push_checkpoint, through the real client, against a Hub on loopback."""

import json
import re
import shutil
import socket
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, signed
from hf_bidir.finetune.data.tokenizer import train_wordpiece
from hf_bidir.hub import push_checkpoint
from hf_bidir.hub.staging import MODELING, code_files, stage
from tests.hub_server import Account, Fault, File, Hub, Repository
from tests.hub_user import TIMEOUT, User, ended, start
from training import text_classification

ROOT = Path(__file__).parents[2]
TOKENS = {"hf_alice": Account("alice"), "hf_reader": Account("alice", "read"), "hf_bob": Account("bob")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = train_wordpiece(["a good film", "a bad film"], vocab_size=40, max_length=16)
    config = BidirBertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    BidirBertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
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
def hub(published):
    return published[0]


@pytest.fixture(scope="module")
def push(published):
    """Has alice push a folder with options."""
    return lambda folder, *options: published[1].run("push", folder, "alice/tiny", *options)


def test_what_is_pushed_loads_by_branch_tag_and_commit_with_equal_tensors(hub, folder, tmp_path):
    commit = hub.repositories["alice/tiny"].tags["v1"]
    load = """
import sys
from transformers import AutoModelForSequenceClassification
from safetensors.torch import save_file
for number, revision in enumerate(sys.argv[2:]):
    model = AutoModelForSequenceClassification.from_pretrained("alice/tiny", revision=revision, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
    save_file(model.state_dict(), f"{sys.argv[1]}/{number}.safetensors")
"""
    loaded = ended(start(hub, load, tmp_path, "main", "v1", commit, home=tmp_path / "stranger"))
    assert loaded.returncode == 0, loaded.stderr
    original = load_file(folder / "model.safetensors")
    for number in range(3):
        tensors = load_file(tmp_path / f"{number}.safetensors")
        assert tensors.keys() >= original.keys()
        assert all(torch.equal(tensors[name], value) for name, value in original.items())


EXAMPLE = """
from huggingface_hub import ModelCard
from transformers import pipeline
example = ModelCard.load("alice/tiny").text.partition("```python\\n")[2].partition("```")[0]
exec(example)
assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
print(revision, pipeline("text-classification", "alice/tiny", trust_remote_code=True)("a good film")[0]["score"])
"""


def test_the_example_of_the_card_loads_its_pinned_revision_and_a_pipeline_works_offline_too(hub, tmp_path):
    followed = ended(start(hub, EXAMPLE, home=tmp_path / "stranger"))
    assert followed.returncode == 0, followed.stderr
    revision = followed.stdout.splitlines()[-1].split()[0]  # the example prints a prediction before it
    assert hub.repositories["alice/tiny"].tags[revision] == hub.repositories["alice/tiny"].tags["v1"]
    asked = len(hub.requests)
    offline = ended(start(hub, EXAMPLE, home=tmp_path / "stranger", HF_HUB_OFFLINE="1"))
    assert (offline.returncode, offline.stdout) == (0, followed.stdout), offline.stderr
    assert len(hub.requests) == asked


def test_a_published_checkpoint_is_measured_by_its_name(hub, tmp_path):
    table = tmp_path / "test.csv"
    table.write_text("text,label\na good film,1\na bad film,0\n")
    with User(hub, tmp_path / "stranger") as stranger:
        told = stranger.run("evaluate", "alice/tiny", "--revision", "v1", "--data", table)
    assert told.returncode == 0, told.stderr
    assert "test.csv (test, 2 examples)" in told.stdout


FOLLOWED = """
from huggingface_hub import ModelCard
exec(ModelCard.load("alice/lora").text.partition("```python\\n")[2].partition("```")[0])
assert type(model.get_base_model()).__module__.startswith("transformers_modules"), type(model.get_base_model())
"""


def test_an_adapter_is_pushed_alone_and_its_card_loads_it_on_its_base(hub, published, folder, tmp_path):
    rows = [f"a {word} film {row},{word}" for row in range(20) for word in ("good", "bad", "new")]
    reviews, adapter = tmp_path / "reviews.csv", tmp_path / "lora"
    reviews.write_text("\n".join(["text,label", *rows]))
    given = ["--model_name_or_path", str(folder), "--train_file", str(reviews), "--output_dir", str(adapter)]
    text_classification.main([*given, "--lora_rank", "2", "--max_steps", "1", "--use_cpu"])
    with pytest.raises(ValueError, match=r"is the folder .*, which others do not have\. Push it first"):
        stage(adapter, tmp_path / "staged")
    config = adapter / "adapter_config.json"
    config.write_text(config.read_text().replace(str(folder), "alice/tiny"))
    pushed = published[1].run("push", adapter, "alice/lora")
    assert pushed.returncode == 0, pushed.stderr
    files = hub.repositories["alice/lora"].at("main").files
    assert {name for name in files if name.endswith((".safetensors", ".py", "config.json"))} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer_config.json",
    }
    assert "base_model: alice/tiny" in files["README.md"].content.decode()
    followed = ended(start(hub, FOLLOWED, home=tmp_path / "stranger"))
    assert followed.returncode == 0, followed.stderr
    label, probability = followed.stdout.split()
    model = PeftModel.from_pretrained(
        BidirBertForSequenceClassification.from_pretrained(folder, num_labels=3, ignore_mismatched_sizes=True), adapter
    )
    inputs = AutoTokenizer.from_pretrained(adapter)("a charming film with a weak ending", return_tensors="pt")
    assert label in ("good", "bad", "new")
    assert float(probability) == pytest.approx(model(**inputs).logits.softmax(-1).max().item(), abs=1e-4)


def test_the_code_that_is_pushed_is_byte_equal_to_that_of_the_package(hub):
    files = hub.repositories["alice/tiny"].at("v1").files
    code = {name: file.content for name, file in files.items() if name.endswith(".py")}
    assert code == {name: (MODELING / name).read_bytes() for name in code_files(BidirBertConfig().auto_map)}
    assert {"config.json", "model.safetensors", "README.md"} <= files.keys()


def test_an_unchanged_folder_makes_no_commit(hub, push, folder):
    before = dict(hub.repositories["alice/tiny"].commits)
    assert push(folder).returncode == 0
    assert hub.repositories["alice/tiny"].commits == before


def test_what_a_person_wrote_on_the_hub_stays_when_the_card_is_renewed(hub, push, folder):
    repository = hub.repositories["alice/tiny"]
    files = repository.at("main").files
    edited = files["README.md"].content.decode().replace("negative mass λ = 1.0", "negative mass λ = 7.0")
    edited = edited.replace("library_name:", "license: mit\nlibrary_name:", 1) + "\nRead our paper.\n"
    repository.add("edited", files | {"README.md": File(edited.encode(), lfs=False)}, "main", None)
    assert push(folder).returncode == 0
    card = repository.at("main").files["README.md"].content.decode()
    assert "Read our paper." in card
    assert "license: mit" in card
    assert "λ = 7.0" not in card


def test_a_tag_that_is_taken_is_refused_before_anything_changes(hub, push, folder):
    before = dict(hub.repositories["alice/tiny"].commits)
    refused = push(folder, "--tag", "v1")
    assert (refused.returncode, "has the tag v1 already; nothing was changed" in refused.stderr) == (2, True)
    assert hub.repositories["alice/tiny"].commits == before


def test_a_moved_content_tag_is_no_pin(hub, push, folder):
    repository = hub.repositories["alice/tiny"]
    content = next(tag for tag in repository.tags if tag.startswith("content-"))
    before = dict(repository.tags)
    files = repository.at("main").files | {"activations.py": File(b"print('mine')", lfs=False)}
    repository.tags[content] = repository.add("another", files, "another", None).sha
    refused = push(folder)
    repository.tags = before
    assert (refused.returncode, f"the tag {content}, which the card names, points to other" in refused.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize(("option", "branch"), [(["--revision", "dev"], "dev"), (["--create-pr"], "refs/pr/")])
def test_a_branch_or_a_pull_request_leaves_the_main_branch_alone(hub, push, folder, tmp_path, option, branch):
    repository = hub.repositories["alice/tiny"]
    before = repository.branches["main"]
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / "all_results.json").write_text('{"test_accuracy": 0.75}')
    done = push(tmp_path / "tiny", *option)
    assert done.returncode == 0, done.stderr
    assert repository.branches["main"] == before
    made = next(name for name in repository.branches if name.startswith(branch))
    assert "all_results.json" in repository.at(made).files


def test_a_dry_run_lists_the_files_and_contacts_no_hub(folder, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a dry run connected to something"))
    summary = push_checkpoint(folder, "alice/tiny", dry_run=True)
    assert re.search(r"\d,\d+  model\.safetensors", summary)
    assert "# tiny" in summary
    assert summary.splitlines()[-1].startswith("This would be one commit to alice/tiny (content-")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pytorch_model.bin", "x", r"holds pytorch_model\.bin: such files can run code"),
        ("run.json", '{"notes": ["/home/me/train.csv"]}', r"run\.json names a path of this machine \('/home/me"),
        ("all_results.json", '{"token": "hf_abcdefghijklmnopqrstuvwxyz"}', r"all_results\.json holds .* a Hub token"),
        ("more.py", "print()", r"more\.py is not model code of this hf_bidir"),
    ],
)
def test_what_must_not_be_published_is_refused(folder, tmp_path, name, content, message):
    shutil.copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        push_checkpoint(tmp_path / "tiny", "alice/tiny", dry_run=True)


def test_a_checkpoint_of_an_earlier_version_is_published_with_the_code_of_this_one(tmp_path):
    with zipfile.ZipFile(ROOT / "tests/fixtures/bert_of_version_0.1.zip") as archive:
        archive.extractall(tmp_path / "old")
    staged = stage(tmp_path / "old", tmp_path / "staged")  # which runs it where there is nothing else
    config = json.loads((staged.folder / "config.json").read_text())
    assert config["auto_map"]["AutoModel"] == "modeling_bidir.BidirBertModel"
    code = {name for name in staged.files if name.endswith(".py")}
    assert code == set(code_files(config["auto_map"]))
    assert "modeling_bidir_bert.py" not in code


@pytest.mark.parametrize("name", ["Dinov2ForImageClassification", "GPT2LMHeadModel"])
def test_any_model_is_published_and_its_card_names_what_it_extends(name, tmp_path):
    torch.manual_seed(0)
    family = name.partition("For")[0].removesuffix("LMHeadModel")
    model_class, config_class = (getattr(transformers, one) for one in (name, f"{family}Config"))
    shape = {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 16}
    special = {} if family == "Dinov2" else {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
    signed(model_class(config_class(**shape, **special, image_size=28))).save_pretrained(tmp_path / "tiny")
    staged = stage(tmp_path / "tiny", tmp_path / "staged")
    assert f"`Bidir{name}` (signed attention in `{name}` of transformers)" in staged.card
    auto_class = {"GPT2": "AutoModelForCausalLM", "Dinov2": "AutoModelForImageClassification"}[family]
    assert f"import {auto_class}\n" in staged.card


@pytest.fixture(scope="module")
def untidy(folder, tmp_path_factory):
    """A checkpoint in half precision, with a file of the Trainer, changed code and missing code: folder and staged."""
    path = tmp_path_factory.mktemp("untidy")
    BidirBertForSequenceClassification.from_pretrained(folder).bfloat16().save_pretrained(path / "tiny")
    (path / "tiny/training_args.bin").write_text("x")
    (path / "tiny/activations.py").write_text("print('changed')")
    (path / "tiny/modeling_bidir.py").unlink()
    return path / "tiny", stage(path / "tiny", path / "staged")


def test_what_a_trainer_leaves_for_itself_is_no_obstacle_and_not_published(untidy):
    assert "training_args.bin" not in untidy[1].files


def test_code_that_was_changed_in_the_folder_is_not_published(untidy):
    assert (untidy[1].folder / "activations.py").read_bytes() == (MODELING / "activations.py").read_bytes()


def test_code_that_a_folder_lacks_is_added(untidy):
    assert "modeling_bidir.py" in untidy[1].files
    assert "- `modeling_bidir.py` `" in untidy[1].card


def test_a_checkpoint_in_half_precision_is_published_as_it_is(untidy):
    source, staged = untidy
    assert (staged.folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a checkpoint folder"):
        push_checkpoint(tmp_path, "alice/tiny", dry_run=True)


TOKENLESS = [
    ("hf_unknown", "alice/tiny", "does not know this token"),
    ("", "alice/tiny", "no Hub token was found"),
    ("hf_reader", "alice/tiny", "may not write"),
    ("hf_bob", "alice/secret", "may not write"),
]


@pytest.fixture(scope="module")
def refusals(folder, tmp_path_factory):
    """The errors for users without permission to push to alice's repositories."""
    with Hub(TOKENS) as hub, User(hub, tmp_path_factory.mktemp("home") / "home") as user:
        secret = hub.repositories["alice/secret"] = Repository("alice/secret", private=True)
        secret.add("initial commit", {}, "main", None)
        done = {(token, repo): user.run("push", folder, repo, HF_TOKEN=token) for token, repo, _ in TOKENLESS}
        assert hub.repositories.keys() == {"alice/secret"}
        assert len(secret.commits) == 1
    return done


@pytest.mark.parametrize(("token", "repo_id", "message"), TOKENLESS)
def test_a_token_without_permission_is_one_line_with_advice(refusals, token, repo_id, message):
    refused = refusals[token, repo_id]
    *_, last = refused.stderr.strip().splitlines()
    assert (refused.returncode, last.startswith("error: "), message in last) == (2, True, True), refused.stderr
    assert not token or token not in refused.stderr


def test_an_error_of_the_server_is_one_line_with_advice_and_commits_nothing(hub, push, folder, tmp_path):
    changed = tmp_path / "tiny"
    shutil.copytree(folder, changed)
    (changed / "vocab.txt").write_text("another file\n")
    before = dict(hub.repositories["alice/tiny"].commits)
    hub.faults.append(Fault("POST", "/commit/", status=500, times=99))
    failed = push(changed)
    hub.faults.clear()
    check_advice(failed)
    assert hub.repositories["alice/tiny"].commits == before


def check_advice(failed):
    *_, last = failed.stderr.strip().splitlines()
    assert (failed.returncode, last.startswith("error: "), "run the command again" in last) == (2, True, True), last
    assert "hf_alice" not in failed.stderr


FAULTS = {
    "cut in the middle": Fault("PUT", "/lfs/", share=0.5, times=99),
    "killed": Fault("PUT", "/lfs/", hang=True, times=99),
}


@pytest.fixture(scope="module")
def troubled(folder, tmp_path_factory):
    """Per fault: a push, the files on the Hub after it, the retry, and the files after that."""
    with ExitStack() as hubs:
        servers = {name: hubs.enter_context(Hub(TOKENS)) for name in FAULTS}
        homes = {name: tmp_path_factory.mktemp("home") / "home" for name in FAULTS}
        users = {name: hubs.enter_context(User(hub, homes[name])) for name, hub in servers.items()}

        def pushed(kill):
            for user in users.values():
                user.begin("push", folder, "alice/tiny")
            deadline = time.monotonic() + TIMEOUT
            while kill and not any(method == "PUT" for method, _ in servers["killed"].requests):
                assert time.monotonic() < deadline, "the push that is to be killed sent no weights"
                time.sleep(0.1)
            if kill:
                users["killed"].process.kill()
            return {name: user.done() for name, user in users.items()}

        def files():
            return {name: set(hub.repositories["alice/tiny"].at("main").files) for name, hub in servers.items()}

        for name, hub in servers.items():
            hub.faults.append(FAULTS[name])
        failed, between = pushed(kill=True), files()
        for hub in servers.values():
            hub.faults.clear()
        users["killed"] = hubs.enter_context(User(servers["killed"], homes["killed"]))
        retried = pushed(kill=False)
        yield {name: (failed[name], between[name], retried[name], after) for name, after in files().items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_leaves_the_repository_as_it_was_and_the_retry_succeeds(troubled, fault):
    failed, between, retried, after = troubled[fault]
    assert failed.returncode != 0
    assert between == {".gitattributes"}
    assert retried.returncode == 0, retried.stderr
    assert {"model.safetensors", "config.json", "README.md"} <= after


def test_a_broken_connection_is_one_line_with_advice(troubled):
    check_advice(troubled["cut in the middle"][0])
