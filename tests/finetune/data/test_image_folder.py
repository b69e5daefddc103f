"""Every image in a class folder counts, whatever its name."""

import os
import shutil
import unicodedata

import pytest
from PIL import Image

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.image_files import folder_digest, read_image_folder


def images(folder, *names):
    """A folder of different images; `names` are paths in it."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(folder / name, "PNG")
    return folder


def classes(split):
    """The number of images of each class."""
    names = split.features["label"].int2str(split["label"][:])
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("name", ["train-station-3.jpg", "test_0.png", "a val b.PNG", "[1].png", "scan"])
def test_no_file_name_hides_an_image(tmp_path, name):
    folder = images(tmp_path / "test", f"day/{name}", "day/x.png", f"night/{name}", "night/x.png")
    assert classes(read_image_folder(folder)) == {"day": 2, "night": 2}


@pytest.mark.parametrize("names", [("bus", "train"), ("__ink__", "bus"), ("a [b]", "bus"), ("test", "train")])
def test_a_class_may_have_any_name(tmp_path, names):
    folder = images(tmp_path / "data [1]", f"{names[0]}/1.png", f"{names[1]}/1.png", f"{names[1]}/2.png")
    assert classes(read_image_folder(folder)) == {names[0]: 1, names[1]: 2}


def test_folders_in_a_class_folder_belong_to_its_class_and_linked_ones_count(tmp_path):
    folder = images(tmp_path / "data", "day/2024/may/1.png", "day/2.png")
    images(tmp_path / "store", "2024/1.png", "2.png", "3.png")
    (folder / "night").symlink_to(tmp_path / "store", target_is_directory=True)
    assert classes(read_image_folder(folder)) == {"day": 2, "night": 3}


def test_hidden_files_do_not_count_and_other_files_are_named(tmp_path, caplog):
    folder = images(tmp_path, "day/1.png", "night/1.png", "night/.2.png", ".trash/1.png")
    (folder / "day/notes.txt").write_text("none")
    assert classes(read_image_folder(folder)) == {"day": 1, "night": 1}
    assert "1 of the files in" in caplog.text
    assert "are not images and were left out: day/notes.txt" in caplog.text


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["day/1.png", "night/1.png", "2.png"], "1 of 3 images are in no class folder, such as 2.png"),
        ([], "expected images in .*, one folder per class; there are none"),
        (
            ["train/day/1.png", "test/day/1.png"],
            r"it has test, train\. Give one folder per option, such as --train_file \S+train$",
        ),
        (["Train/day/1.png"], "it has Train"),
        (["train/day/1.png", "val/day/1.png", "val/day/2.png", "val/logo.png"], "it has train, val"),
        (["train/day/1.png", "val/day/1.png", "samples/1.png", "logo.png"], "it has train, val"),
    ],
)
def test_what_is_no_folder_of_classes_is_one_error(tmp_path, names, said):
    with pytest.raises(InputError, match=said):
        read_image_folder(images(tmp_path, *names))


def test_a_class_that_may_be_a_split_is_named(tmp_path, caplog):
    folder = images(tmp_path, "train/day/1.png", "samples/1.png")
    assert classes(read_image_folder(folder)) == {"samples": 1, "train": 1}
    assert "train has the name of a split and holds folders; its images are of the class 'train'" in caplog.text


def test_images_without_labels_may_lie_anywhere_but_in_several_splits(tmp_path):
    split = read_image_folder(images(tmp_path, "1.png", "day/2.png", "day/test/3.png"), labelled=False)
    assert (len(split), split.column_names) == (3, ["image"])
    with pytest.raises(InputError, match="it has test, train"):
        read_image_folder(images(tmp_path / "splits", "train/1.png", "test/1.png"), labelled=False)


def test_a_table_of_metadata_gives_the_labels(tmp_path):
    folder = images(tmp_path / "data [1]", "1.png", "test_2.png")
    (folder / "metadata.csv").write_text("file_name,label\n1.png,day\ntest_2.png,night\n")
    split = read_image_folder(folder)
    assert split["label"][:] == ["day", "night"]
    assert split[1]["image"].getpixel((0, 0)) == 1


def test_metadata_with_two_columns_of_one_name_are_refused(tmp_path):
    (images(tmp_path, "1.png") / "metadata.csv").write_text("file_name,label,label\n1.png,day,bar\n")
    with pytest.raises(InputError, match=r"columns 2 and 3 of \S+ are both called 'label'"):
        read_image_folder(tmp_path)


def test_replaced_metadata_give_their_own_labels_also_where_size_and_time_are_the_same(tmp_path):
    folder = images(tmp_path, "1.png", "2.png")
    for labels in (["day", "bar"], ["bar", "day"]):
        rows = [f"{number}.png,{label}\n" for number, label in enumerate(labels, 1)]
        (folder / "metadata.csv").write_text("file_name,label\n" + "".join(rows))
        os.utime(folder / "metadata.csv", (315532800, 315532800))
        assert read_image_folder(folder)["label"][:] == labels


def test_the_digest_is_of_images_and_classes_alone(tmp_path):
    one = images(tmp_path / "one", "été/1.png", "nuit/2.png")
    digest = folder_digest(one)
    other = tmp_path / "other"
    shutil.copytree(one / "nuit", other / "nuit")
    shutil.copytree(one / "été", other / unicodedata.normalize("NFD", "été"))  # as some systems write it
    (other / "nuit/2.png").rename(other / "nuit/another.png")
    (other / "nuit/.DS_Store").write_text("")
    assert folder_digest(other) == digest
    (other / "nuit/another.png").rename(other / unicodedata.normalize("NFD", "été") / "2.png")
    assert folder_digest(other) != digest


def test_the_digest_changes_with_a_pixel_and_with_a_copy_of_an_image(tmp_path):
    folder = images(tmp_path, "day/1.png", "night/1.png")
    digests = {folder_digest(folder)}
    shutil.copy(folder / "day/1.png", folder / "day/2.png")
    digests.add(folder_digest(folder))
    Image.new("L", (4, 4), 9).save(folder / "day/2.png")
    digests.add(folder_digest(folder))
    assert len(digests) == 3
