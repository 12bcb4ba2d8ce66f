"""Small valid data files of every reader, and ways in which they can be damaged."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import zipfile

import numpy as np
from PIL import Image
from tiny_data import idx

from mpifed.data import load_omniglot
from mpifed.data.image_folder import ImageFolder
from mpifed.data.images import Cifar, IdxImages
from mpifed.data.libsvm import LibSVM
from mpifed.data.npz import MedMnist
from mpifed.data.texts import TextColumns, TextLines, TextSet, read_vectors

#: Bytes to which a small file may unpack, and of an image file, in these tests.
SMALL = 2**20
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
LABELS = {"0": 0, "2": None, "4": 1}


def bytes_of(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) * 7 % 251).astype(np.uint8).reshape(shape)


def archive(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def member(content: bytes, name: str, text: bytes, stated: int | None = None) -> bytes:
    """Add a member to a zip archive; ``stated`` is its length in the archive's directory."""
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, text)
        if stated is not None:
            file.getinfo(name).file_size = stated
    return buffer.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    content = b""
    for name, text in files.items():
        content = member(content, f"r/{name}", text)
    return content


def picture(*shape: int, kind: str = "png", dtype=np.uint8) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(bytes_of(*shape).astype(dtype)).save(buffer, kind)
    return buffer.getvalue()


def batch(count: int, **changes) -> bytes:
    good = {b"data": bytes_of(count, 3072), b"labels": [k % 4 for k in range(count)]}
    return pickle.dumps({**good, **{key.encode(): value for key, value in changes.items()}}, protocol=4)


def scans(**changes) -> bytes:
    good = {
        "train_images": bytes_of(6, 5, 4),
        "train_labels": np.arange(6)[:, None] % 3,
        "test_images": bytes_of(4, 5, 4),
        "test_labels": np.arange(4)[:, None] % 3,
    }
    return archive(**{key: value for key, value in (good | changes).items() if value is not None})


def header(shape: tuple, descr: str = "|u1") -> bytes:
    """The header of an array without the array."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def claims(name: str, shape: tuple, descr: str = "|u1", filler: int = 10) -> bytes:
    """The archive of scans with an array whose header states this shape."""
    return member(scans(**{name: None}), f"{name}.npy", header(shape, descr) + bytes(filler))


TREE = {
    f"{part}/{kind}/{i}.png": picture(6, 4, 3) for part in ("train", "test") for kind in "ab" for i in "12"
}
TINY = {f"train/{c}/images/{i}.png": picture(6, 4, 3) for c in ("n1", "n2") for i in "12"}
TINY |= {f"val/images/v{i}.png": picture(6, 4, 3) for i in "12"}
TINY |= {"val/val_annotations.txt": b"v1.png\tn1\t0\nv2.png\tn2\t0\n"}
ROWS = b"-1 1:0.5 3:2\n+1 4:1\n-1\n1 2:1e3\n"
GLOVE = b"good 1 2 3\nfilm 0.5 1e-3 -2\nother 1 2 3\n"
TABLE = b'0,7,plain\n4,8,"a ""quoted"", cell"\n2,9,neither\n'
#: Reader → function of a folder, and its files.
READERS = {
    "idx": (
        IdxImages("d", "home", 6, 4, (3, 2), 3),
        {
            f"{part}-{what}-ubyte": idx(array)
            for part, n in (("train", 6), ("t10k", 4))
            for what, array in (("images-idx3", bytes_of(n, 3, 2)), ("labels-idx1", bytes_of(n) % 3))
        },
    ),
    "cifar": (Cifar("d", ("d",), ("one",), "test", "labels", 4, None), {"one": batch(5), "test": batch(4)}),
    "medmnist": (MedMnist("d", 3), {"d.npz": scans()}),
    "omniglot": (
        load_omniglot,
        {
            f"images_{part}.npz": archive(images=bytes_of(n, 20, 105, 105) > 99)
            for part, n in (("background", 2), ("evaluation", 1))
        },
    ),
    "libsvm": (LibSVM("d", 4, 2, 4, (-1, 1)), {"d": ROWS, "d.t": b"1 1:1\n-1 4:7\n"}),
    "glove": (lambda folder: read_vectors("g.txt", {"good", "film"}, folder), {"g.txt": GLOVE}),
    "word2vec": (lambda folder: read_vectors("g.txt", {"good"}, folder), {"g.txt": b"3 3\n" + GLOVE}),
    "vectors": (
        lambda folder: read_vectors("g.npz", {"good"}, folder),
        {"g.npz": archive(words=np.array(["good", "film"]), vectors=np.ones((2, 3), np.float16))},
    ),
    "table": (
        TextSet(
            "d", ("d",), "home", (TextColumns("a", 3, 2, 0, LABELS),), (TextColumns("b", 3, 2, 0, LABELS, 3),)
        ),
        {"a": TABLE, "b": TABLE},
    ),
    "lines": (
        TextSet("d", ("d",), "home", (TextLines("a.0", "a.1"),), (TextLines("b.0", "b.1"),)),
        dict.fromkeys(("a.0", "a.1", "b.0", "b.1"), b"so\nbad .\n"),
    ),
    "folder": (ImageFolder("d", "r", (".",), "home"), {f"r/{name}": text for name, text in TREE.items()}),
    "zip": (ImageFolder("d", "r", (".",), "home"), {"r.zip": zipped(TREE)}),
    "tiny": (ImageFolder("d", "r", (".",), "home"), {f"r/{name}": text for name, text in TINY.items()}),
    "tiny zip": (ImageFolder("d", "r", (".",), "home"), {"r.zip": zipped(TINY)}),
}


def zeros(pack, start: bytes = b"") -> bytes:
    """A few kilobytes that unpack to more than :data:`SMALL` bytes."""
    options = {"compresslevel": 1} if pack is gzip.compress else {"preset": 0}
    return pack(start + bytes(SMALL + 1), **options)


#: Reader, file, its content or a function of the valid one, compression, part of the message.
# fmt: off
CASES = [
    ("idx", "train-images-idx3-ubyte", lambda old: old[:-1], "",
     "6 x 3 x 2 unsigned bytes (52 bytes uncompressed), found 51 bytes"),
    ("idx", "train-images-idx3-ubyte", lambda old: old + b"0", "", "found more than 52 bytes"),
    ("idx", "train-images-idx3-ubyte", b"", "", "found only 0 bytes"),
    ("idx", "train-images-idx3-ubyte", lambda old: old[:9], "", "found only 9 bytes"),
    ("idx", "train-images-idx3-ubyte", b"<html>" + bytes(60), "", "found magic number 0x3C68746D"),
    ("idx", "train-images-idx3-ubyte", idx(bytes_of(6, 6)), "", "found magic number 0x00000802"),
    ("idx", "train-images-idx3-ubyte", idx(bytes_of(6, 2, 3)), "", "found dimensions 6 x 2 x 3"),
    ("idx", "train-images-idx3-ubyte", bytes(99), ".gz", "found a file that cannot be read: Not a gzipped"),
    ("idx", "train-images-idx3-ubyte", lambda old: zeros(gzip.compress, old), ".gz",
     "found more than 52 bytes"),
    ("idx", "t10k-labels-idx1-ubyte", lambda old: zeros(lzma.compress), ".xz",
     "found magic number 0x00000000"),
    ("idx", "t10k-labels-idx1-ubyte", lambda old: gzip.compress(old)[:-4], ".gz",
     "found a file that cannot be read: "),
    ("idx", "t10k-labels-idx1-ubyte", lambda old: lzma.compress(old)[:-4], ".xz",
     "found a file that cannot be read: "),
    ("idx", "t10k-images-idx3-ubyte", idx(np.zeros((4, 3, 2), ">f4"), 13), "",
     "found magic number 0x00000D03"),
    ("idx", "t10k-labels-idx1-ubyte", idx(np.array([0, 1, 2, 3], np.uint8)), "",
     "expected labels from 0 to 2, found 3"),
    ("cifar", "one", lambda old: old[:-9000], "",
     "a pickled dictionary with n x 3072 bytes of data and n labels, found "),
    ("cifar", "one", lambda old: zeros(lzma.compress, old), ".xz", "it unpacks to more than 1048576 bytes"),
    ("cifar", "one", batch(5, data=np.full((5, 3072), np.nan)), "",
     "found an array of type 'f8', which is not an integer type"),
    ("cifar", "one", pickle.dumps([1, 2]), "", "found a pickled list"),
    ("cifar", "one", pickle.dumps({b"data": bytes_of(5, 3072)}), "", "found no labels in the dictionary"),
    ("cifar", "one", batch(0), "", "found labels that are not a list of integers"),
    ("cifar", "one", batch(5, data=bytes_of(5, 1024)), "", "found data of shape (5, 1024) and 5 labels"),
    ("cifar", "one", batch(5, data=bytes_of(5, 3072).astype(int)), "", "found data of type int64 instead of"),
    ("cifar", "one", batch(5, data=bytes_of(4, 3072)), "", "found data of shape (4, 3072) and 5 labels"),
    ("cifar", "one", batch(5, labels=[0, 1, 2, 3, 4]), "", "expected labels from 0 to 3, found 4 in row 4"),
    ("cifar", "one", batch(5, labels=[0.0] * 5), "", "found labels that are not a list of integers"),
    ("cifar", "one", batch(5, labels=[[0]] * 5), "", "found labels that are not a list of integers"),
    ("cifar", "one", b"cnumpy\nndarray\n}b.", "", "missing 1 required positional argument: 'state'"),
    ("medmnist", "d.npz", lambda old: old[:-30], "", "found File is not a zip file"),
    ("medmnist", "d.npz", scans(train_images=bytes_of(6, 5, 4).astype(np.uint16)), "",
     "found train_images of type uint16 and shape (6, 5, 4)"),
    ("medmnist", "d.npz", scans(train_images=np.full((6, 5, 4), np.inf)), "",
     "found train_images of type float64"),
    ("medmnist", "d.npz", scans(test_images=bytes_of(4, 4, 5)), "",
     "expected training and test images of one size, found 5 x 4 and 4 x 5"),
    ("medmnist", "d.npz", scans(test_labels=np.array([[0], [1], [2], [3]])), "",
     "test_labels: expected labels from 0 to 2, found 3 in row 3"),
    ("medmnist", "d.npz", scans(train_labels=np.array([[0], [1], [2], [-1], [0], [0]])), "",
     "train_labels: expected labels from 0 to 2, found -1 in row 3"),
    ("medmnist", "d.npz", scans(train_labels=np.arange(6)[:, None] % 2), "",
     "expected train images of all 3 classes, found none of class 2"),
    ("medmnist", "d.npz", scans(train_labels=np.zeros((6, 2), int)), "",
     "train labels of shape (6, 2) for 6 images"),
    ("medmnist", "d.npz", scans(test_labels=np.array([[None]] * 4)), "",
     "found Object arrays cannot be loaded"),
    ("medmnist", "d.npz", scans(test_labels=None), "", "found no test_labels among train_images"),
    ("medmnist", "d.npz", claims("test_images", (10**7, 28, 28)), "",
     "found more than fits into memory: Unable to allocate"),
    ("medmnist", "d.npz", claims("test_images", (4, 5, 4), filler=81), "",
     "found test_images of more bytes than its header states"),
    ("medmnist", "d.npz", lambda old: old[:100], "", "found File is not a zip file"),
    ("medmnist", "d.npz", claims("test_images", (2**14, 8, 9), filler=72 * 2**14), "",
     "found more than 1048576 bytes, test_images among them"),
    ("omniglot", "images_evaluation.npz", archive(images=np.zeros((2, 20, 105, 105), bool)), "",
     "expected a NumPy archive with the arrays images of type bool and shape (1, 20, 105, 105), found "
     "images of type bool and shape (2, 20"),
    ("libsvm", "d", lambda old: old[:-4], "", "found in line 4: "),
    ("libsvm", "d", lambda old: old[:-8], "", "found 3 rows"),
    ("libsvm", "d", lambda old: old + old, "", "found 8 rows"),
    ("libsvm", "d", b"", "", "4 rows of LIBSVM text with labels -1 and 1 and columns 1 to 4, found "),
    ("libsvm", "d", lambda old: old.replace(b"4:1", b"0:1"), "", "found in line 2: "),
    ("libsvm", "d", lambda old: old.replace(b"+1", b"2"), "", "found the label 2 in row 2"),
    ("libsvm", "d", lambda old: old.replace(b"2:1e3", b"2:nan"), "",
     "expected finite numbers, found nan in row 4, column 2"),
    ("libsvm", "d", lambda old: old.replace(b"2:1e3", b"2:1e39"), "",
     "expected finite numbers, found inf in row 4, column 2"),
    ("libsvm", "d", lambda old: old.replace(b"4:1", b"5:1"), "",
     "found in line 2: n_features was set to 4, but"),
    ("libsvm", "d", lambda old: old.replace(b"4:1", b"4:" + b"x" * 10**3), "",
     "found in line 2: could not convert string to float: b'xxxx"),
    ("libsvm", "d", lambda old: old.replace(b"+1", b"nan"), "", "found the label nan in row 2"),
    ("libsvm", "d", lambda old: old + b"#" * 10**4, "", "found more than 1280 bytes"),
    ("libsvm", "d.t", lambda old: zeros(gzip.compress, old), ".gz", "found more than 640 bytes"),
    ("libsvm", "d.t", b"\x89PNG\r\n\x1a\n", "", "found in line 1: "),
    ("glove", "g.txt", lambda old: old[:-1], "", "found an incomplete line in line 3"),
    ("glove", "g.txt", lambda old: old[:-4], "", "found 1 numbers instead of 3 in line 3"),
    ("glove", "g.txt", lambda old: old.replace(b"1e-3", b"nan"), "",
     "found nan, which is not a finite number, in line 2"),
    ("glove", "g.txt", lambda old: old.replace(b"1e-3", b"-1e39"), "",
     "found -inf, which is not a finite number, in line 2"),
    ("glove", "g.txt", lambda old: old.replace(b"1e-3", b"x"), "",
     "found could not convert string to float: 'x' in line 2"),
    ("glove", "g.txt", lambda old: zeros(lzma.compress, old), ".xz", "it unpacks to more than 1048576 bytes"),
    ("word2vec", "g.txt", lambda old: old[: old.index(b"other")], "",
     "found 2 words with 3 numbers instead of 3 with 3 in line 3"),
    ("vectors", "g.npz", archive(words=np.array(["good"]), vectors=np.ones((2, 3))), "",
     "found 1 words and 2 vectors"),
    ("vectors", "g.npz", archive(words=np.array(["a", "good"]), vectors=np.array([[1.0], [np.nan]])), "",
     "expected finite numbers, found others in row 1 of vectors, for the word 'good'"),
    ("vectors", "g.npz", archive(words=np.array([1, 2]), vectors=np.ones((2, 3))), "",
     "found words of type int64"),
    ("table", "a", lambda old: old[:-1], "", "found an incomplete last line"),
    ("table", "a", b"", "", "found an incomplete last line"),
    ("table", "a", b"target,id,text\n", "", "found 0 rows"),
    ("table", "a", b"0,7,plain,more\n", "", "found 4 columns in line 1"),
    ("table", "a", b'0,7,"a"b\n', "", "found ',' expected after '\"' in line 1"),
    ("table", "a", b'0,7,"a\n', "", "found unexpected end of data in line 1"),
    ("table", "b", lambda old: old[: old.index(b"2,9")], "", "found 2 rows"),
    ("table", "b", lambda old: old * 2, "", "found 6 rows"),
    ("table", "a", b"0,7,plain\n4,8\n", "", "found 2 columns in line 2"),
    ("table", "a", b"0,7,plain\nnan,8,x\n", "", "found the label 'nan' in line 2"),
    ("table", "a", b"0,7,plain\n4,8,\xff\n", "", "found bytes that are not utf-8 in line 2"),
    ("table", "a", b"0,7," + b"x" * 200000 + b"\n", "",
     "found field larger than field limit (131072) in line 1"),
    ("table", "b", lambda old: zeros(gzip.compress, old), ".gz", "it unpacks to more than 1048576 bytes"),
    ("lines", "a.1", b"so\n\nbad\n", "", "found an empty line 2"),
    ("lines", "a.1", b"so\nbad", "", "found an incomplete last line"),
    ("lines", "b.0", b"so\nb\xff\n", "", "found bytes that are not utf-8 in line 2"),
    ("folder", "r/test/a/1.png", lambda old: old[:40], "",
     ", test/a/1.png: expected an image of 6 x 4 pixels, found a file that cannot be decoded: "),
    ("folder", "r/test/a/1.png", picture(4, 6, 3), "",
     "found 4 x 6: all images must have the size of the first training image"),
    ("folder", "r/test/a/1.png", picture(300, 400), "", "found 300 x 400"),
    ("folder", "r/test/a/1.png", picture(6, 4, dtype=np.uint16), "",
     ", test/a/1.png: expected one byte per channel, found pixels of mode I"),
    ("folder", "r/train/a/1.png", b"", "",
     ", train/a/1.png: expected an image, found a file that cannot be read: "),
    ("zip", "r.zip", lambda old: old[:-30], "", "found File is not a zip file"),
    ("zip", "r.zip", lambda old: member(old, "r/test/a/3.png", bytes(2**20 + 1)), "",
     ", test/a/3.png: expected an image of 6 x 4 pixels, found a file that cannot be decoded: 1048577 "
     "bytes, more than 1048576"),
    ("zip", "r.zip", lambda old: member(old, "r/test/a/3.png", bytes(2**20 + 1), stated=9), "",
     ", test/a/3.png: expected an image of 6 x 4 pixels, found a file that cannot be decoded: "),
    ("zip", "r.zip", lambda old: member(old, "r/test/c/1.png", picture(6, 4, 3)), "",
     "expected training samples of every class, found none of 'c' (but 1 in test)"),
    ("zip", "r.zip", zipped({name: text for name, text in TREE.items() if "train" in name}), "",
     "expected images in test or val, one folder per class, found none"),
    ("zip", "r.zip", zipped({name: text for name, text in TREE.items() if "test" in name}), "",
     "expected images in train, one folder per class, found none"),
    ("tiny", "r/val/val_annotations.txt", lambda old: old[:12], "",
     ", val/val_annotations.txt: expected one line per image of val/images: its name, a tab and its "
     "class, found none for val/images/v2.png"),
    ("tiny", "r/val/val_annotations.txt", lambda old: old + b"v3.png\tn1\n", "",
     "found 'v3.png\\tn1' in line 3, but no such image"),
    ("tiny", "r/val/val_annotations.txt", lambda old: old + b"v2.png\tn1\n", "",
     "found 'v2.png\\tn1' in line 3 again"),
    ("tiny", "r/val/val_annotations.txt", b"v1.png\tn\xff\n", "",
     ", val/val_annotations.txt: expected one line per image of val/images: its name, a tab and its "
     "class, found a file that cannot be read: "),
    ("tiny", "r/val/val_annotations.txt", b"v1.png\tn9\nv2.png\tn1\n", "", "found none of 'n9'"),
    ("tiny zip", "r.zip", lambda old: zipped(TINY | {"val/val_annotations.txt": b"v1.png\tn\xff\n"}), "",
     ", val/val_annotations.txt: expected one line"),
    ("tiny zip", "r.zip", lambda old: zipped(TINY | {"val/val_annotations.txt": bytes(2**20 + 1)}), "",
     "found a file that cannot be read: 1048577 bytes, more than 1048576"),
]
# fmt: on
