"""Images are read from tables and folders, checked, and turned, moved and mirrored at random."""

import io
import os
import shutil

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import BitImageProcessor

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import DistillationDataArguments, ImageColumnArguments, ImageDataArguments
from hf_bidir.finetune.data.image_data import (
    ImageCollator,
    new_image_processor,
    read_image_splits,
    read_unlabelled_images,
    saved_image_processor,
)
from hf_bidir.finetune.data.sources import folder_digest, read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
IN_CLASSES = [f"class{row % 2}/{row:02}.png" for row in range(20)]


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_table(folder, images):
    Dataset.from_dict({"image": images, "label": [0, 1] * 10}).to_parquet(str(folder / "table.parquet"))
    return str(folder / "table.parquet")


def write_folder(folder, names=IN_CLASSES):
    """A folder of different images; `names` are paths in it."""
    for name, pixels in zip(names, PIXELS, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(pixels))
    return str(folder)


def read(path, **options):
    return read_image_splits(ImageDataArguments(train_file=path, validation_file=path, **options))


SOURCES = {
    "raw bytes": lambda place: write_table(place, [png(pixels) for pixels in PIXELS]),
    "struct": lambda place: write_table(place, [{"bytes": png(pixels), "path": None} for pixels in PIXELS]),
    "folder": lambda place: write_folder(place / "a [1]"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_same_images(tmp_path, kind):
    images = read(SOURCES[kind](tmp_path)).train["image"]
    assert {np.asarray(image).tobytes() for image in images} == {pixels.tobytes() for pixels in PIXELS}


def test_file_names_mean_nothing_and_a_class_may_have_the_name_of_a_split(tmp_path):
    names = ["bus/train-1.jpg", "bus/test_0.png", "train/a val b.PNG", "train/.hidden.png", "bus/notes.txt"]
    split = read_images(write_folder(tmp_path, names))
    labels = split.features["label"].int2str(split["label"][:])
    assert sorted(labels) == ["bus", "bus", "train"]


def test_a_folder_of_splits_is_refused(tmp_path):
    with pytest.raises(InputError, match="Val, train"):
        read_images(write_folder(tmp_path, ["train/day/1.png", "Val/day/1.png"]))


def test_metadata_give_the_labels_also_where_a_replaced_table_has_the_same_size_and_time(tmp_path):
    folder = tmp_path / "data [1]"
    write_folder(folder, ["1.png", "test_2.png"])
    for labels in (["day", "bar"], ["bar", "day"]):
        (folder / "metadata.csv").write_text(f"file_name,label\n1.png,{labels[0]}\ntest_2.png,{labels[1]}\n")
        os.utime(folder / "metadata.csv", (315532800, 315532800))
        assert read_images(str(folder))["label"][:] == labels


def test_the_digest_changes_with_a_pixel_a_class_and_a_copy_but_not_with_names_and_hidden_files(tmp_path):
    write_folder(tmp_path, ["day/1.png", "night/1.png"])
    digests = [folder_digest(tmp_path)]
    (tmp_path / "day/1.png").rename(tmp_path / "day/another.png")
    (tmp_path / "day/.DS_Store").write_text("")
    assert folder_digest(tmp_path) == digests[0]
    changes = [
        lambda copy: shutil.copy(tmp_path / "day/another.png", copy),
        lambda copy: copy.write_bytes(png(PIXELS[9])),
        lambda copy: copy.rename(tmp_path / "night/2.png"),
    ]
    for change in changes:
        change(tmp_path / "day/2.png")
        digests.append(folder_digest(tmp_path))
    assert len(set(digests)) == 4


def test_the_digits_are_split_by_class():
    splits = read_image_splits(ImageDataArguments(dataset_name="digits"))
    assert {name: len(split) for name, split in splits} == {"train": 1257, "validation": 180, "test": 360}
    assert splits.names == list("0123456789")
    assert max(np.asarray(image).max() for image in splits.validation["image"][:9]) == 255
    assert min(np.bincount(splits.test["label"])) >= 34


def test_a_column_without_images_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match=r"images in .* train split"):
        read(write_table(tmp_path, list(range(20))))


def test_an_image_that_cannot_be_read_or_converted_is_named_before_training(tmp_path, caplog):
    path = write_folder(tmp_path)
    (tmp_path / "class0/06.png").write_bytes(png(PIXELS[0])[:40])
    Image.fromarray(np.full((6, 6), 200, np.float32)).save(tmp_path / "class0/08.tif")
    with pytest.raises(InputError, match=r"row 3, 5 \(from 0\): no usable image"):
        read(path)
    assert "class0/06.png" in caplog.text
    assert "class0/08.tif" in caplog.text
    assert len(read(path, drop_bad_rows=True).train) == 19


def test_a_flat_folder_of_images_needs_no_labels_but_readable_images(tmp_path):
    path = write_folder(tmp_path, [f"{index}.png" for index in range(8)])
    data = DistillationDataArguments(train_file=[path], validation_share=0.25)
    splits = read_unlabelled_images(data)
    assert (len(splits.train), len(splits.validation)) == (6, 2)
    assert splits.train.column_names == ["image"]
    (tmp_path / "4.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"row \d \(from 0\): no usable image"):
        read_unlabelled_images(data)


def test_a_batch_is_rgb_between_minus_one_and_one_or_grey():
    examples = [{"image": Image.fromarray(pixels), "label": 1} for pixels in PIXELS[:3]]
    processor = new_image_processor(6)
    batch = ImageCollator(processor)(examples)
    grey = torch.tensor(PIXELS[:3] / 127.5 - 1, dtype=torch.float32)
    torch.testing.assert_close(batch["pixel_values"], grey[:, None].expand(-1, 3, -1, -1), atol=1e-6, rtol=0)
    assert batch["labels"].tolist() == [1, 1, 1]
    processor.image_mean = processor.image_std = [0.5]
    assert ImageCollator(processor, mode="L")(examples)["pixel_values"].shape == (3, 1, 6, 6)


def test_a_checkpoint_reads_images_of_another_side_whole(tmp_path):
    BitImageProcessor(size={"shortest_edge": 8}, crop_size=4).save_pretrained(tmp_path)
    image = Image.fromarray(np.full((6, 12), 255, np.uint8)).convert("RGB")
    image.putpixel((0, 0), (0, 0, 0))
    for side, shape in ((None, 4), (12, 12)):
        pixels = saved_image_processor(str(tmp_path), side)(image, return_tensors="pt")["pixel_values"][0]
        assert pixels.shape == (3, shape, shape)
        assert (pixels[:, 0, 0] < pixels[:, -1, -1]).all() == bool(side)  # the corner is not cropped


def collated(image, **augmentation):
    """Thirty copies of an image in a batch."""
    collator = ImageCollator(new_image_processor(image.width), ImageColumnArguments(**augmentation))
    return collator([{"image": image}] * 30)["pixel_values"]


def test_a_shifted_image_moves_by_at_most_the_shift_and_leaves_black_behind():
    batch = collated(Image.new("L", (9, 9), 255), shift=2)
    assert (batch[:, :, 4, 0] == -1).any()
    assert (batch[:, :, 0, 4] == -1).any()
    assert (batch[:, :, 3:6, 3:6] == 1).all()


def test_a_turned_image_turns_about_its_centre_both_ways_and_by_at_most_the_angle():
    bar = Image.new("L", (9, 9))
    bar.paste(255, (0, 4, 9, 5))  # level, through the centre
    ink = (collated(bar, rotate=45)[:, 0] + 1) / 2
    assert (ink[:, 4, 4] == 1).all()
    assert (ink[:, [0, 1, 7, 8], 3:6] == 0).all()  # never steeper than the diagonals
    falls, rises = ink[:, 2, 2] > 0.5, ink[:, 2, 6] > 0.5  # on one diagonal or the other
    assert falls.any()
    assert rises.any()


def test_a_flipped_image_is_the_mirror_image_or_itself_and_the_same_for_the_same_batch():
    image = Image.fromarray(PIXELS[0])
    plain, flipped, again = (collated(image, flip=flip) for flip in (False, True, True))
    mirrored = [torch.equal(image, plain[0].flip(-1)) for image in flipped]
    assert 5 < sum(mirrored) < 25
    assert all(mirror or torch.equal(image, plain[0]) for image, mirror in zip(flipped, mirrored, strict=True))
    assert torch.equal(flipped, again)


def test_the_image_processor_is_saved_under_the_name_that_every_version_loads(tmp_path):
    new_image_processor(6).save_pretrained(tmp_path)
    assert '"image_processor_type": "ViTImageProcessor"' in (tmp_path / "preprocessor_config.json").read_text()
