"""Readers of labelled texts: tables and lines, right, truncated, wrong and real."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from realdata import real

from mpifed.data import TEXTS, DataError
from mpifed.data.texts import TextColumns, TextLines, TextSet

LABELS = {"0": 0, "2": None, "4": 1}
TAB = TextColumns("part.tsv", 2, 0, 1, {"0": 0, "1": 1}, rows=3, delimiter="\t", quoted=False)
CSV = TextColumns("part.csv", 3, text=2, label=0, labels=LABELS)
TABLE = '0,7,plain\n4,8,"a ""quoted"", cell\nof two lines"\n2,9,neither\n'


def texts(folder: Path, form, *, name: str | None = None, content: str | bytes = "", test=None):
    """Read ``content`` as both parts of a data set stored in ``form``."""
    if name or isinstance(form, TextColumns):
        raw = content.encode() if isinstance(content, str) else content
        (folder / (name or form.file)).write_bytes(raw)
    return TextSet("words", ("words",), "https://example.org", (form,), (test or form,))(folder)


def test_tab_separated_texts_keep_their_quotation_marks(tmp_path):
    read = texts(tmp_path, TAB, content='sentence\tlabel\nit "is\t1\nso , so \t0\nécru\t1\n')
    assert read.train == ['it "is', "so , so ", "écru"] and read.train_labels.tolist() == [1, 0, 1]
    assert read.test == read.train and read.test_labels.dtype == np.int64 and list(read.files) == ["part.tsv"]


@pytest.mark.parametrize("header", ["", "target,id,text\n"])
def test_quoted_cells_and_a_header_or_none(tmp_path, header):
    read = texts(tmp_path, CSV, content=header + TABLE)
    assert read.train == ["plain", 'a "quoted", cell\nof two lines'] and read.train_labels.tolist() == [0, 1]


def test_a_packed_table_in_another_encoding(tmp_path):
    form = TextColumns("part.csv", 3, text=2, label=0, labels=LABELS, encoding="latin-1")
    read = texts(tmp_path, form, name="part.csv.gz", content=gzip.compress("4,1,caf\xe9\n".encode("latin-1")))
    assert read.train == ["caf\xe9"]
    with pytest.raises(DataError, match="found bytes that are not utf-8"):
        texts(tmp_path, CSV, name="part.csv.gz", content=gzip.compress("4,1,caf\xe9\n".encode("latin-1")))


@pytest.mark.parametrize(
    "content, found",
    [
        ("", "a last line without an end"),
        ("target,id,text\n", "0 rows"),
        ("2,1,a\n", "1 rows"),
        (TABLE[:-5], "a last line without an end"),
        (TABLE[: TABLE.index("of two")], "unexpected end of data"),
        ("0,1,a\n0,1\n", "2 columns in line 2"),
        ("0,1,a\n3,1,b\n", "the label '3' in line 2"),
        ("0,1,a,b\n", "4 columns in line 1"),
        ('0,1,"a"b\n', "',' expected after '\"' in line 1"),
        (b"\x89PNG\r\n\x1a\n", "bytes that are not utf-8"),
    ],
)
def test_another_table_is_refused(tmp_path, content, found):
    with pytest.raises(DataError) as caught:
        texts(tmp_path, CSV, content=content)
    assert (
        f"{tmp_path / 'part.csv'}: expected rows of 3 columns split by ',', labels 0, 2, 4, found {found}"
        in str(caught.value)
    )


@pytest.mark.parametrize("content", ["a\t1\nb\t0\n", "a\t1\nb\t0\nc\t0\nd\t1\n"])
def test_a_fixed_number_of_rows_is_counted(tmp_path, content):
    with pytest.raises(DataError, match="expected 3 rows of 2 columns .* found [24] rows"):
        texts(tmp_path, TAB, content=content)


def test_lines_of_two_files(tmp_path):
    form = TextLines("part.0", "part.1")
    (tmp_path / "part.0").write_text("so bad\nworse .\n")
    (tmp_path / "part.1").write_text("fine\n")
    read = texts(tmp_path, form)
    assert read.train == ["so bad", "worse .", "fine"] and read.train_labels.tolist() == [0, 0, 1]
    for content, found in (
        ("fine", "a last line without an end"),
        ("", "a last line"),
        ("fine\n\nwell\n", "an empty line"),
    ):
        (tmp_path / "part.1").write_text(content)
        with pytest.raises(DataError, match=f"part.1: expected lines of UTF-8 text, found {found}"):
            texts(tmp_path, form)
    (tmp_path / "part.1").unlink()
    with pytest.raises(DataError, match="words lacks a file: expected one of part.1, part.1.gz, part.1.xz"):
        texts(tmp_path, form)


def test_the_first_form_that_is_there_is_read(tmp_path):
    (tmp_path / "part.csv").write_text(TABLE)
    both = TextSet("words", ("words",), "https://example.org", (TAB, CSV), (CSV,))
    assert list(both(tmp_path).files) == ["part.csv"]
    (tmp_path / "part.tsv").write_text("a\t1\nb\t0\nc\t0\n")
    assert sorted(both(tmp_path).files) == ["part.csv", "part.tsv"]


@pytest.mark.parametrize(
    "name, folder, train, test",
    [
        ("sst2", "sst2", (67_349, 37_569), (872, 444)),
        ("sentiment140", "sentiment140", (20_000, 10_058), (359, 182)),
        ("yelp-reviews", "yelp", None, None),
        ("yelp-sentences", "yelp", (63_483, 38_205), (126_670, 76_392)),
    ],
)
def test_real_texts(name, folder, train, test):
    read = TEXTS[name](real(folder))
    assert all(map(str.strip, read.test))
    if train:
        assert (len(read.train), read.train_labels.sum()) == train and (
            len(read.test),
            read.test_labels.sum(),
        ) == test
    else:  # the two files together hold 8,939 reviews that are not of three stars
        assert (
            len(read.train) + len(read.test) == 8_939
            and read.train_labels.sum() + read.test_labels.sum() == 6_613
        )
