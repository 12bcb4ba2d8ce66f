"""Folders and archives of image files: layouts, decoding on demand, resizing."""

from __future__ import annotations

import io
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mpifed.base.data_files import digest_of_path
from mpifed.data import DATASETS, DataError
from mpifed.data.image_folder import ImageFolder
from mpifed.problems import Classification, FairClassification

pytestmark = pytest.mark.filterwarnings("ignore:.* files are left out:UserWarning")
PETS = ImageFolder("pets", "photos", ("pets",), "https://example.org/pets")


def picture(number: int, size: tuple[int, int] = (6, 4)) -> np.ndarray:
    """A colour image ``[h, w, 3]``."""
    return np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)


def png(array: np.ndarray, format: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format)
    return buffer.getvalue()


def tree(part: str = "test") -> dict[str, bytes]:
    """Files by name: four cats and two dogs for training, one of each in ``part``."""
    names = [f"train/cat/deep/{i}.png" for i in range(4)]
    names += ["train/dog/a.PNG", "train/dog/b.png", f"{part}/cat/x.png", f"{part}/dog/y.png"]
    return {name: png(picture(i)) for i, name in enumerate(names)} | {"train/dog/notes.txt": b"no image"}


def write(folder: Path, files: dict[str, bytes], archive: bool = False) -> Path:
    """``files`` as the data set ``PETS``; returns the folder or the archive."""
    root = folder / "pets" / "photos"
    shutil.rmtree(root, ignore_errors=True)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    if not archive:
        return root
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("train/cat/other.png", b"beside photos/")
        target.writestr("photos/test/empty/", b"")
        for name, content in files.items():
            target.writestr(f"photos/{name}", content)
    shutil.rmtree(root)
    return path


@pytest.mark.parametrize("part", ["test", "val"])
@pytest.mark.parametrize("archive", [False, True])
def test_classes_are_sorted_by_name_and_pixels_decoded(tmp_path, archive, part):
    path = write(tmp_path, tree(part), archive)
    images = PETS(tmp_path)
    assert images.shape == (3, 6, 4)
    assert images.train_labels.tolist() == [0, 0, 0, 0, 1, 1] and images.test_labels.tolist() == [0, 1]
    stored = np.stack([picture(i).transpose(2, 0, 1) for i in range(6)])
    expected = stored.astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(images.train[torch.tensor([5, 0, 5])].numpy(), expected[[5, 0, 5]])
    np.testing.assert_array_equal(images.train[:].numpy(), expected)
    assert [file.path for file in images.files.values()] == [str(path)]


def test_grey_images_become_colour_images(tmp_path):
    grey = picture(0)[:, :, 0]
    write(tmp_path, tree() | {"train/cat/deep/0.png": png(grey)})
    image = PETS(tmp_path).train[0].numpy()
    assert (image == image[0]).all() and (image[0] == grey.astype(np.float32) / np.float32(255)).all()


def test_the_digest_changes_with_a_name_and_with_a_byte(tmp_path):
    def digest(files):
        write(tmp_path, files)
        return PETS(tmp_path).files["photos"].digest

    files = tree()
    renamed = {name.replace("b.png", "c.png"): content for name, content in files.items()}
    changed = files | {"train/dog/b.png": png(picture(99))}
    assert len({digest(files), digest(renamed), digest(changed)}) == 3
    assert digest(files) == digest(dict(reversed(files.items())))


@pytest.mark.parametrize("archive", [False, True])
def test_only_images_of_the_client_are_decoded(tmp_path, monkeypatch, archive):
    monkeypatch.setitem(DATASETS, "pets", PETS)
    files = tree()
    files["train/cat/deep/2.png"] = files["train/cat/deep/2.png"][:40]
    write(tmp_path, files, archive)
    problem = FairClassification(dataset="pets", clients=3)
    problem.prepare(0, str(tmp_path))
    owner = next(client for client in range(3) if 2 in problem._rows[client])
    for client in range(3):
        if client != owner:
            assert problem.client_data(client)[0].shape == (2, 3, 6, 4)
    with pytest.raises(
        DataError, match="train/cat/deep/2.png: expected an image of 6 x 4 pixels, found a file that cannot"
    ):
        problem.client_data(owner)


def test_an_image_is_decoded_once(tmp_path):
    root = write(tmp_path, tree())
    images = PETS(tmp_path)
    first = images.train[1:3].clone()
    (root / "train/cat/deep/1.png").unlink()
    assert torch.equal(images.train[1:3], first)


def test_archives_with_another_root_and_missing_archives(tmp_path):
    path = write(tmp_path, tree(), archive=True)
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("other/train/cat/0.png", b"")
    message = "expected a zip archive of the folder photos, found no folder photos/ in it, but other/: pack"
    with pytest.raises(DataError, match=message):
        PETS(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="pets lacks a file: expected one of photos/, photos.zip .a zip "):
        PETS(tmp_path)


HIDDEN = ("train/.ipynb_checkpoints/0.png", "train/cat/.ipynb_checkpoints/0.png", "train/cat/._0.png",
          "__MACOSX/train/cat/._0.png", "test/.bird/0.png", "train/@eaDir/0.png", "train/#recycle/0.png",
          "lost+found/0.png")  # fmt: skip


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_files_are_left_out_with_a_warning(tmp_path, archive, name):
    write(
        tmp_path, tree() | {name: png(picture(0)), "train/.DS_Store": b"", "test/cat/Thumbs.db": b""}, archive
    )
    with pytest.warns(UserWarning, match=r"files are left out \(.*1 hidden.*\), such as "):
        images = PETS(tmp_path)
    assert images.class_names == ["cat", "dog"] and len(images.train[:]) == 6 and len(images.test) == 2


@pytest.mark.parametrize("name", ["train/cat/a.webp", "test/dog/b.TIF", "train/c.png", "Test/dog/d.png"])
def test_images_that_are_not_read_cause_a_warning(tmp_path, name):
    files = {name: content for name, content in tree().items() if not name.endswith(".txt")}
    write(tmp_path, files | {name: b"", "README.md": b"not an image"})
    with pytest.warns(UserWarning, match=rf"photos: 1 files are left out .*, such as {name}: only images"):
        PETS(tmp_path)


@pytest.mark.parametrize("archive", [False, True])
def test_a_class_cannot_vanish(tmp_path, archive):
    write(tmp_path, tree() | {"train/bird/a.webp": b""}, archive)
    with pytest.raises(DataError, match="in the folder of every class, found none in train/bird: convert"):
        PETS(tmp_path)


@pytest.mark.parametrize("name, reason", [
    ("cat ", "begins or ends with a blank"), ("Cat", "resembles 'Cat'"),
])  # fmt: skip
def test_unusual_names_of_classes_cause_a_warning(tmp_path, name, reason):
    files = {f"{part}/{name}/{i}.png": png(picture(i)) for part in ("train", "val") for i in range(2)}
    write(tmp_path, {one: content for one, content in tree().items() if not one.endswith(".txt")} | files)
    with pytest.warns(UserWarning, match=f"among the classes {reason} and is read as a name of its own"):
        PETS(tmp_path)


def test_images_of_other_formats_with_a_known_suffix(tmp_path):
    write(tmp_path, tree() | {"train/dog/c.png": png(picture(0), "GIF")})
    with pytest.raises(DataError, match="c.png: .*: its content is none of JPEG, PNG, BMP, PPM"):
        PETS(tmp_path).train[:]


def test_links_are_followed(tmp_path):
    root = write(tmp_path, tree())
    (root / "train/dog").rename(tmp_path / "dogs")
    (root / "train/dog").symlink_to(tmp_path / "dogs")
    (root / "train/cat/deep/0.png").rename(tmp_path / "one.png")
    (root / "train/cat/deep/0.png").symlink_to(tmp_path / "one.png")
    images = PETS(tmp_path)
    assert images.train_labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert digest_of_path(str(root)) == images.files["photos"].digest
    (root / "train/cat/loop").symlink_to(root)
    with pytest.raises(DataError, match="a link to a folder that contains it: .*train/cat/loop"):
        PETS(tmp_path)
    (root / "train/cat/loop").unlink()
    (root / "train/cat/9.png").symlink_to("nowhere.png")
    with pytest.raises(DataError, match="a link that leads nowhere: .*train/cat/9.png"):
        PETS(tmp_path)


@pytest.mark.parametrize("old, new", [("/", "\\"), ("photos/", "./photos/"), ("photos/", "photos//")])
def test_names_in_an_archive_as_some_programs_write_them(tmp_path, old, new):
    path = write(tmp_path, tree())
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as target:
        for name, content in tree().items():
            member = zipfile.ZipInfo()
            member.filename = f"photos/{name}".replace(old, new)
            target.writestr(member, content)
    known = PETS(tmp_path).train[:]
    shutil.rmtree(path)
    images = PETS(tmp_path)
    assert images.class_names == ["cat", "dog"] and torch.equal(images.train[:], known)


def test_a_file_that_is_twice_in_an_archive_is_refused(tmp_path):
    path = write(tmp_path, tree(), archive=True)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile
        archive.writestr("photos/train/dog/b.png", png(picture(1)))
    with pytest.raises(DataError, match="found two files called photos/train/dog/b.png"):
        PETS(tmp_path)


def test_a_folder_with_one_class_is_refused(tmp_path):
    write(tmp_path, {f"{part}/cat/0.png": png(picture(0)) for part in ("train", "test")})
    with pytest.raises(DataError, match=r"photos: expected at least two classes, found 1 \(cat\)"):
        PETS(tmp_path)


def test_the_layout_of_tiny_imagenet(tmp_path):
    files = {f"train/n{c}/images/n{c}_{i}.png": png(picture(10 * c + i)) for c in (1, 2) for i in range(2)}
    files |= {f"val/images/val_{i}.png": png(picture(i)) for i in range(3)}
    lines = ["val_0.png\tn2\t0\t0\t9\t9", "val_1.png\tn1\t0\t0\t9\t9", "val_2.png\tn2\t0\t0\t9\t9"]
    write(tmp_path, files | {"val/val_annotations.txt": "\n".join(lines).encode()})
    images = PETS(tmp_path)
    assert images.train_labels.tolist() == [0, 0, 1, 1]
    found = (images.test[:] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(found, [picture(i) for i in range(3)])
    assert images.test_labels.tolist() == [1, 0, 1]


def test_a_user_defined_folder_with_a_validation_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = write(tmp_path, tree() | {"validation/dog/v.png": png(picture(7))})
    monkeypatch.chdir(root.parent)
    images = Classification(dataset={"name": "folder", "path": "photos"}).dataset()
    assert images.class_names == ["cat", "dog"] and images.shape == (3, 6, 4)
    assert images.test_labels.tolist() == [0, 1] and images.validation_labels.tolist() == [1]
    found = (images.validation[:] * 255).round().byte()[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found, picture(7))
    assert list(images.files) == ["photos"]


@pytest.mark.parametrize("path", ["photos", "photos.zip"])
def test_images_are_resized_to_a_given_size(tmp_path, monkeypatch, path):
    flat = np.full((9, 5, 3), 77, np.uint8)  # resizing does not change a single colour
    root = write(tmp_path, tree() | {"test/cat/x.png": png(flat)}, archive=path.endswith(".zip"))
    monkeypatch.chdir(root.parent)
    images = Classification(dataset={"name": "folder", "path": path, "size": 8}).dataset()
    assert images.shape == (3, 8, 8) and images.train[:].shape == (6, 3, 8, 8)
    assert (images.test[0] * 255).round().unique().tolist() == [77]
    with pytest.raises(DataError, match="test/cat/x.png: expected an image of 6 x 4 pixels, found 9 x 5"):
        Classification(dataset={"name": "folder", "path": path}).dataset()
