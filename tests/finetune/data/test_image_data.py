import gzip
import io
import shutil

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoImageProcessor

from hf_bidir import signed
from hf_bidir.common.errors import InputError
from hf_bidir.explain import read_image
from hf_bidir.finetune.arguments import ImageDataArguments
from hf_bidir.finetune.data.image_data import (
    ImageCollator,
    guessed_image_size,
    guessed_patch_size,
    new_image_processor,
    read_image_split,
    read_image_splits,
)
from tests.tiny_models import stock_model

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
LABELS = np.arange(20) % 2


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_idx(folder, pixels=PIXELS, labels=LABELS):
    for name, array in (("train-images-idx3-ubyte.gz", pixels), ("train-labels-idx1-ubyte.gz", labels)):
        sizes = np.array(array.shape, ">u4").tobytes()
        content = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
        (folder / name).write_bytes(gzip.compress(content))
    return str(folder / "train-images-idx3-ubyte.gz")


def write_parquet(path, images, labels=LABELS):
    Dataset.from_dict({"image": images, "label": list(labels)}).to_parquet(str(path))
    return str(path)


def write_folder(folder):
    for row, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
        (folder / f"class{label}" / f"{row:02}.png").write_bytes(png(pixels))
    return str(folder)


def read(path, **options):
    return read_image_splits(ImageDataArguments(train_file=path, validation_file=path, **options))


def pixels_of(split):
    return sorted(np.asarray(row["image"]).tobytes() for row in split)


@pytest.mark.parametrize("kind", ["idx", "raw bytes", "struct", "folder"])
def test_every_kind_of_source_gives_the_same_images(tmp_path, kind):
    encoded = [png(pixels) for pixels in PIXELS]
    path = {
        "idx": lambda: write_idx(tmp_path),
        "raw bytes": lambda: write_parquet(tmp_path / "t.parquet", encoded),
        "struct": lambda: write_parquet(tmp_path / "t.parquet", [{"bytes": b, "path": None} for b in encoded]),
        "folder": lambda: write_folder(tmp_path / "train"),
    }[kind]()
    splits = read(path)
    assert pixels_of(splits.train) == sorted(pixels.tobytes() for pixels in PIXELS)
    assert splits.class_shares() == dict.fromkeys(splits.names, 0.5)


def test_the_digits_are_split_by_class_without_overlap():
    splits = read_image_splits(ImageDataArguments(dataset_name="digits"))
    sizes = {name: len(split) for name, split in splits}
    assert sizes == {"train": 1257, "validation": 180, "test": 360}
    assert splits.names == list("0123456789")
    assert min(np.bincount(splits.test["label"])) >= 34


def test_a_file_beside_the_digits_is_refused_rather_than_ignored(tmp_path):
    data = ImageDataArguments(dataset_name="digits", test_file=write_idx(tmp_path))
    with pytest.raises(InputError, match="expected --train_file beside"):
        read_image_splits(data)


def test_a_column_without_images_and_an_archive_are_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="expected images, or the bytes of image files"):
        read(write_parquet(tmp_path / "t.parquet", list(range(20))))
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", write_folder(tmp_path / "photos"))
    with pytest.raises(InputError, match=r"unpack .*photos\.zip and give its folder"):
        read(archive)


def test_an_idx_file_that_is_cut_or_has_no_labels_is_one_clear_error(tmp_path):
    path = write_idx(tmp_path)
    whole = gzip.decompress((tmp_path / "train-images-idx3-ubyte.gz").read_bytes())
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole[:-3]))
    with pytest.raises(InputError, match="or is cut"):
        read(path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"expected the labels of .* in train-labels-idx1-ubyte.gz"):
        read(path)


def test_an_image_that_cannot_be_read_or_converted_is_named_before_training(tmp_path):
    path = write_folder(tmp_path / "train")
    (tmp_path / "train/class0/06.png").write_bytes(png(PIXELS[0])[:40])
    Image.fromarray(np.full((6, 6), 200, np.float32)).save(tmp_path / "train/class0/08.tif")
    with pytest.raises(
        InputError, match=r"rows 3, 5 \(from 0\): no readable image: .*class0/06\.png.*08\.tif.*from 0 to 1"
    ):
        read(path)
    splits = read(path, drop_bad_rows=True)
    assert splits.notes[0].startswith("4 rows were left out. train (the train split), rows 3, 5 (from 0)")
    assert str(tmp_path) not in splits.notes[0]


INK = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
KINDS = {
    "transparent.png": Image.fromarray(np.stack([np.zeros_like(INK), INK], -1), "LA"),
    "deep.png": Image.fromarray(INK.astype(np.uint16) * 257),
    "float.tif": Image.fromarray(INK.astype(np.float32) / 255),
    "palette.png": Image.fromarray(np.stack([INK, INK[::-1], INK.T], -1)).quantize(64),
    "cmyk.tif": Image.fromarray(np.stack([INK, INK[::-1], INK.T, INK], -1), "CMYK"),
    "turned.png": Image.fromarray(INK),
}


@pytest.mark.parametrize("name", KINDS)
def test_training_evaluation_and_explanation_see_the_same_pixels(name, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6 if name.startswith("turned") else 1
    for folder in ("train/day", "train/night"):
        (tmp_path / folder).mkdir(parents=True)
        KINDS[name].save(tmp_path / folder / name, exif=exif)
    new_image_processor(8).save_pretrained(tmp_path)
    data = ImageDataArguments(train_file=str(tmp_path / "train"), validation_file=str(tmp_path / "train"))
    trained = ImageCollator(new_image_processor(8))([read_image_splits(data).train[0]])["pixel_values"]
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    split = read_image_split(str(tmp_path / "train"), data, ["day", "night"], "test")
    evaluated = ImageCollator(loaded)([split[0]])["pixel_values"]
    model = signed(stock_model("vit"))
    explained = read_image(model, loaded, tmp_path / "train/day" / name).inputs["pixel_values"]
    torch.testing.assert_close(evaluated, trained, atol=1e-6, rtol=0)
    torch.testing.assert_close(explained, trained, atol=1e-6, rtol=0)
    assert len(trained.unique()) >= 64  # no grey level is lost


def test_a_batch_is_rgb_between_minus_one_and_one():
    examples = [{"image": Image.fromarray(pixels), "label": 1} for pixels in PIXELS[:3]]
    batch = ImageCollator(new_image_processor(6))(examples)
    assert batch["pixel_values"].shape == (3, 3, 6, 6)
    grey = torch.tensor(PIXELS[:3] / 127.5 - 1, dtype=torch.float32)
    torch.testing.assert_close(batch["pixel_values"], grey[:, None].expand(-1, 3, -1, -1), atol=1e-6, rtol=0)


def test_a_shifted_image_moves_by_at_most_the_shift_and_leaves_black_behind():
    torch.manual_seed(0)
    white = [{"image": Image.new("L", (9, 9), 255), "label": 0} for _ in range(30)]
    batch = ImageCollator(new_image_processor(9), shift=2)(white)["pixel_values"]
    assert batch.min() == -1
    assert (batch[:, :, 3:6, 3:6] == 1).all()


def test_a_turned_image_turns_about_its_centre_both_ways_and_by_at_most_the_angle():
    torch.manual_seed(0)
    bar = Image.new("L", (9, 9))
    bar.paste(255, (0, 4, 9, 5))  # level, through the centre
    pixels = ImageCollator(new_image_processor(9), rotate=45)([{"image": bar, "label": 0}] * 30)["pixel_values"][:, 0]
    ink = (pixels + 1) / 2
    assert (ink[:, 4, 4] == 1).all()
    assert (ink[:, [0, 1, 7, 8], 3:6] == 0).all()  # never steeper than the diagonals
    falls, rises = ink[:, 2, 2] > 0.5, ink[:, 2, 6] > 0.5  # on one diagonal or the other
    assert falls.any()
    assert rises.any()
    assert not (falls & rises).any()


def test_a_flipped_image_is_the_mirror_image_or_itself():
    torch.manual_seed(0)
    examples = [{"image": Image.fromarray(PIXELS[0]), "label": 0}] * 20
    plain, flipped = (
        ImageCollator(new_image_processor(6), flip=flip)(examples)["pixel_values"] for flip in (False, True)
    )
    mirrored = [torch.equal(image, plain[0].flip(-1)) for image in flipped]
    assert 0 < sum(mirrored) < 20
    assert all(mirror or torch.equal(image, plain[0]) for image, mirror in zip(flipped, mirrored, strict=True))


def test_the_image_processor_is_saved_under_the_name_that_every_version_loads(tmp_path):
    processor = new_image_processor(6)
    processor.save_pretrained(tmp_path)
    image = Image.fromarray(PIXELS[0]).convert("RGB")
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert '"image_processor_type": "ViTImageProcessor"' in (tmp_path / "preprocessor_config.json").read_text()
    expected = processor(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(loaded(image, return_tensors="pt")["pixel_values"], expected, atol=1e-6, rtol=0)


def pictures(count=8):
    pixels = np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return [{"image": Image.fromarray(rows)} for rows in pixels]


def test_timms_augmentation_changes_images_the_same_way_for_the_same_batch():
    processor = new_image_processor(16)
    plain = ImageCollator(processor)(pictures())["pixel_values"]
    data = ImageDataArguments(train_file="t", augment="rand-m9-n3", erase=0.5)
    state = np.random.get_state()[1].copy()
    changed, again = (ImageCollator.of(processor, data)(pictures())["pixel_values"] for _ in range(2))
    assert changed.equal(again)
    assert not changed.equal(plain)
    assert (np.random.get_state()[1] == state).all()  # others' random numbers go on as if nothing had been
    shorter = ImageCollator.of(processor, data)(pictures()[:7])["pixel_values"]
    assert not shorter.equal(changed[:7])


def test_erasing_sets_rectangles_to_the_mean_colour():
    data = ImageDataArguments(train_file="t", erase=1.0)
    pixels = ImageCollator.of(new_image_processor(16), data)(pictures())["pixel_values"]
    assert all((image == 0).all(0).sum() >= 4 for image in pixels)


@pytest.mark.parametrize(
    ("option", "message"), [({"augment": "rnd"}, "timm knows no augmentation"), ({"erase": 2}, "erase")]
)
def test_an_augmentation_that_cannot_be_is_one_error(option, message):
    with pytest.raises(InputError, match=message):
        ImageCollator.of(new_image_processor(16), ImageDataArguments(train_file="t", **option))


@pytest.mark.parametrize(
    ("width", "height", "side", "patch"),
    [(28, 28, 28, 4), (32, 35, 32, 4), (4000, 3000, 64, 8), (61, 90, 60, 6), (3, 9, 4, 1)],
)
def test_a_new_model_has_few_patches_whatever_the_size_of_the_photographs(width, height, side, patch):
    images = Dataset.from_dict({"image": [Image.new("RGB", (width, height))]})
    assert guessed_image_size(images) == side
    assert guessed_patch_size(side) == patch
