"""User-defined tables: each format, the split of rows, errors."""

from __future__ import annotations

import gzip
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
from mpifed.data import USER_DATASETS, USER_TEXTS, DataError, libsvm
from mpifed.data.samples import hold_out, standardized

pytestmark = pytest.mark.filterwarnings("ignore:.*the standard deviation in column:UserWarning")

#: Numbers without a short decimal representation, words and labels of the rows.
NUMBERS = np.random.default_rng(0).standard_normal((12, 2)) * 10.0 ** np.arange(12)[:, None]
WORDS = ["red", "blue", "green"] * 4
LABELS = ["good", "bad"] * 6


def lines(rows: int = 12, label=LABELS) -> list[str]:
    made = ["a,colour,b,member,kind"]
    for i in range(rows):
        made.append(f"{float(NUMBERS[i, 0])!r},{WORDS[i]},{float(NUMBERS[i, 1])!r},{i % 2 == 0},{label[i]}")
    return made


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes lines to a file of the working folder."""
    monkeypatch.chdir(tmp_path)

    def written(name: str, rows: list[str]) -> None:
        text = "".join(f"{row}\n" for row in rows).encode()
        Path(name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    return written


def table(**changes):
    settings = {"file": "mine.csv", "target": "kind", "test": 0.25} | changes
    return build(USER_DATASETS["table"], settings, "data set 'table'")


def halves(labels) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, given the labels of all rows."""
    return hold_out(np.asarray(labels), 0.25, 0, "test")


def expected() -> np.ndarray:
    """The samples in the lines: a, colour in three columns, b, member."""
    colours = [[word == one for one in ("blue", "green", "red")] for word in WORDS]
    member = np.arange(12) % 2 == 0
    return np.column_stack([NUMBERS[:, 0], colours, NUMBERS[:, 1], member]).astype(np.float32)


@pytest.mark.parametrize("name, separator, options", [
    ("mine.csv", ",", {}), ("mine.tsv", "\t", {}), ("mine.csv.gz", ",", {}),
    ("mine.csv", ";", {"separator": ";"}),
])  # fmt: skip
def test_a_table_of_text_is_read_exactly(write, name, separator, options):
    write(name, [line.replace(",", separator) for line in lines()])
    data = table(file=name, **options)()
    train, test = halves(LABELS)
    labels = np.array([1, 0] * 6)  # in alphabetical order
    for part, rows in (("train", train), ("test", test)):
        samples = getattr(data, part)
        assert samples.dtype == torch.float32
        np.testing.assert_array_equal(samples.numpy(), expected()[rows])
        np.testing.assert_array_equal(getattr(data, f"{part}_labels").numpy(), labels[rows])
    assert data.class_names == ("bad", "good") and data.classes == 2 and len(data.test) == 3
    assert data.validation is None and list(data.files) == [name]


def test_the_encoding_of_a_table(write):
    Path("mine.csv").write_bytes("a,kind\n1,für\n2,für\n3,wider\n4,wider\n".encode("latin-1"))
    assert table(encoding="latin-1", test=0.5)().class_names == ("für", "wider")
    with pytest.raises(DataError, match=r"as utf-8-sig \(settings separator, encoding\), found 'utf-8'"):
        table()()


def test_columns_of_a_large_scale_cause_a_warning(write, recwarn):
    write("mine.csv", ["a,income,kind", *(f"{i},{1000 * i},{i % 2}" for i in range(8))])
    table(standardize=True)()
    assert not recwarn
    with pytest.warns(UserWarning, match="in column 'income' is up to 2.29e.03, .*: set .*standardize = tr"):
        table()()


def test_arrays_of_a_large_scale_cause_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.arange(8) % 2
    np.savez("mine.npz", samples=np.arange(48, dtype=np.uint8).reshape(8, 1, 2, 3) * 5, kind=labels)
    with pytest.warns(UserWarning, match="mine.npz: the largest number of a sample is up to 235, for which"):
        table(file="mine.npz")()
    np.savez("mine.npz", samples=np.arange(16).reshape(8, 2) * [1, 100], kind=labels)
    with pytest.warns(UserWarning, match="mine.npz: the standard deviation in column 2 is up to 458"):
        table(file="mine.npz")()


def test_columns_are_standardised_on_the_training_rows(write):
    write("mine.csv", lines())
    plain, scaled = table(), table(standardize=True)
    train, test = halves(LABELS)
    raw = np.column_stack([NUMBERS, np.arange(12) % 2 == 0]).astype(np.float64)
    by_hand = ((raw - raw[train].mean(0)) / raw[train].std(0)).astype(np.float32)
    np.testing.assert_array_equal(scaled().train[:, [0, 4, 5]].numpy(), by_hand[train])
    np.testing.assert_array_equal(scaled().test[:, [0, 4, 5]].numpy(), by_hand[test])
    np.testing.assert_array_equal(scaled().train[:, 1:4].numpy(), plain().train[:, 1:4].numpy())

    write("mine.csv", ["a,b,kind", *(f"{i},7,{i % 2}" for i in range(8))])  # a constant column becomes 0
    assert (table(standardize=True)().train[:, 1] == 0).all()


def test_test_and_validation_rows_in_files(write):
    write("mine.csv", lines())
    write("later.csv", [lines()[0], *lines()[3:6]])
    write("between.csv", [lines()[0], *lines()[6:8]])
    data = table(test="later.csv", validation="between.csv")()
    np.testing.assert_array_equal(data.train.numpy(), expected())
    np.testing.assert_array_equal(data.test.numpy(), expected()[2:5])
    np.testing.assert_array_equal(data.validation.numpy(), expected()[5:7])
    assert data.validation_labels.tolist() == [0, 1]
    assert {*data.files} == {"mine.csv", "later.csv", "between.csv"}


def test_a_column_of_splits(write):
    parts = ["train"] * 6 + ["validation"] * 2 + ["test"] * 4
    write("mine.csv", [f"{line},{part}" for line, part in zip(lines(), ["part", *parts])])
    data = table(test=None, split="part")()
    np.testing.assert_array_equal(data.train.numpy(), expected()[:6])
    np.testing.assert_array_equal(data.validation.numpy(), expected()[6:8])
    np.testing.assert_array_equal(data.test.numpy(), expected()[8:])


def test_dropped_columns(write):
    write("mine.csv", [f"{i},{line}" for i, line in zip(["", *range(12)], lines())])
    with pytest.raises(DataError, match=r'a name for every column, .* set drop = \["Unnamed: 0"\]'):
        table()()
    data = table(drop=["Unnamed: 0", "colour"])()
    assert data.shape == (3,)


@pytest.mark.parametrize("labels, names", [
    ([10, 9, 2] * 4, ("2", "9", "10")),
    (["b", "a"] * 6, ("a", "b")),
    ([True, False] * 6, ("False", "True")),
    ([1.0, 2.0] * 6, ("1.0", "2.0")),
    (["010", "9", "1E2"] * 4, ("9", "010", "1E2")),
    (["010", "9", "x"] * 4, ("010", "9", "x")),
])  # fmt: skip
def test_names_and_order_of_classes(write, labels, names):
    write("mine.csv", lines(label=labels))
    data = table()()
    assert data.class_names == names
    found = [names[label] for label in torch.cat([data.train_labels, data.test_labels]).tolist()]
    train, test = halves([names.index(str(label)) for label in labels])
    assert found == [str(labels[row]) for row in [*train, *test]]


def test_a_column_of_clients(write):
    hospitals = ["north", "south", "east"] * 4
    write("mine.csv", [f"{line},{one}" for line, one in zip(lines(), ["hospital", *hospitals])])
    data = table(client="hospital")()
    train, _ = halves(LABELS)
    assert data.owner_names == ("east", "north", "south") and data.shape == (6,)
    assert [data.owner_names[one] for one in data.owners] == [hospitals[row] for row in train]


def test_clients_without_training_rows_cause_a_warning(write):
    write("mine.csv", [f"{line},{one}" for line, one in zip(lines(), ["hospital", *range(12)])])
    with pytest.warns(UserWarning, match="3 clients are left out of training, such as '.', because test = 0"):
        assert len(table(client="hospital")().owner_names) == 9


ODD_NAMES = [
    ("007", "7"), ("7", "7.0"), ("1E2", "100"), ("1e400", "inf"), ("nan", "NaN"), ("NA", "None"), ("-0", "0"),
    (str(10**20), str(10**20 + 1)), (" x", "x"), ("a/b", "a-b"), ("\u00e9", "e\u0301"),
    ("true", "True"), ("x" * 1000 + "a", "x" * 1000 + "b"), ("%2F", "/"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* is read as a name of its own:UserWarning")
@pytest.mark.parametrize("names", ODD_NAMES, ids=lambda names: names[0][:10])
def test_names_are_the_texts_in_the_file(write, names):
    """Clients, classes and groups with different texts are different, also if the texts are equal numbers."""
    write("mine.csv", ["a,who,kind,sex", *(f"{i},{names[i % 2]},{names[i // 2 % 2]},{names[i % 2]}"
                                           for i in range(16))])  # fmt: skip
    data = table(client="who", groups=["sex"])()
    for found in (data.owner_names, data.class_names, data.groups["sex"].names):
        assert sorted(found) == sorted(names)
    rows = data.train[:, 0].long()
    assert [data.owner_names[one] for one in data.owners] == [names[row % 2] for row in rows]
    assert [data.class_names[one] for one in data.train_labels] == [names[row // 2 % 2] for row in rows]
    np.savez("mine.npz", a=np.zeros((4, 1)), kind=np.array([*names] * 2))
    assert sorted(table(file="mine.npz", test=0.5)().class_names) == sorted(names)


def test_whole_numbers_in_an_archive_are_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", a=np.zeros((6, 1)), kind=np.array([0, 1] * 3), who=np.array([1e20, 9.0, 3e20] * 2))
    names = table(file="mine.npz", test=1 / 3, client="who")().owner_names
    assert names == ("9", str(10**20), str(3 * 10**20))


@pytest.mark.parametrize(("name", "groups", "message"), [
    ("Male ", ["sex"], "'Male ' in column 'sex' begins or ends with a blank and is read as .* .2 rows."),
    ("Male ", [], "'Male ' in column 'sex' begins or ends with a blank and is read as .* .2 rows."),
    ("NA", ["sex"], "'NA' in column 'sex' often stands for a missing value and is read as"),
    ("male", ["sex"], "'male' in column 'sex' resembles 'Male' and is read as a name of its own .2 rows."),
    ("male", [], "'male' in column 'sex' resembles 'Male' and is read as a name of its own .2 rows."),
    ("Male\u200b", [], r"'Male.u200b' in column 'sex' resembles 'Male' and is read"),
    ("\uff2dale", [], "'\uff2dale' in column 'sex' resembles 'Male' and is read"),
])  # fmt: skip
def test_unusual_names_cause_a_warning(write, name, groups, message):
    """Names of groups, and words that become columns."""
    write("mine.csv", ["a,sex,kind", *(f"{i},{name if i % 4 == 1 else 'Male'},{i % 2}" for i in range(8))])
    with pytest.warns(UserWarning, match=f"mine.csv, row 2: {message}"):
        table(groups=groups)()


def test_there_is_one_warning_for_many_unusual_names(write):
    """A file with blanks after its separators; equal numbers and equal letters in two codes."""
    write("mine.csv", ["a,who,kind", *(f"{i}, {i // 2},{i % 2}" for i in range(12))])
    with pytest.warns(
        UserWarning, match="row 1: ' 0' in column 'who' .* .12 rows with 6 such names."
    ) as warned:
        table(client="who")()
    assert len(warned) == 1
    names = ["7", "07", "7.0", "\u00e9", "e\u0301", "a", "A", "b"]  # letters of another case are classes
    write("mine.csv", ["a,who,kind", *(f"{i},{names[i // 2]},{i % 2}" for i in range(16))])
    with pytest.warns(UserWarning, match="'07' in column 'who' resembles '7' .* .6 rows with 3 such names"):
        table(client="who")()


@pytest.mark.parametrize("cell", ["1,000,{}00", "1.000.{}00", "${}.50", "{} %", "1 00{}", "\u2212{}"])
def test_words_that_look_like_numbers_cause_a_warning(write, cell):
    write("mine.csv", ["a;b;kind", *(f"{i};{cell.format(i)};{i % 2}" for i in range(8))])
    with pytest.warns(UserWarning, match="and the 7 other words in column 'b' look like numbers"):
        assert table(separator=";")().train.shape[1] == 9
    write("mine.csv", ["a;b;kind", *(f"{i};0{i}.02.2020;{i % 2}" for i in range(8))])
    table(separator=";")()  # words


def test_groups_as_features_are_numbers_or_words_as_before(write):
    write("mine.csv", ["a,old,kind", *(f"{i},{i % 3 == 0},{i % 2}" for i in range(8))])
    data = table(groups=["old"], group_features=True)()
    assert data.train.shape[1] == 2 and data.groups["old"].names == ("False", "True")
    assert data.train[:, 1].tolist() == (data.train[:, 0] % 3 == 0).tolist()


def test_missing_values_of_all_columns_are_counted(write):
    write("mine.csv", ["a,b,kind", "1,,x", ",NA,x", "3,3,", "4,4,y"])
    message = (
        "row 1: expected a value in every column, found none in 'b' .2 of 4 rows, .*, row 1., "
        "'a' .1 of 4 .*, row 2., 'kind' .1 of 4 .*, row 3.: .*, or the columns: drop = ..b., .a.., or set "
        "missing = .mean., "
    )
    with pytest.raises(DataError, match=message):
        table()()


GAPS = ["age,blood,ok,kind,part", "1,A,True,x,train", ",B,,y,train", "5,,False,x,train", "9,A,True,y,train",
        ",A,,x,test", "7,C,True,y,test"]  # fmt: skip
#: Setting → age, ok and the indicators of age, blood and ok in the rows.
FILLED = {
    "mean": ([1, 5, 5, 9, 5, 7], [1, 2 / 3, 0, 1, 2 / 3, 1]),
    "median": ([1, 5, 5, 9, 5, 7], [1, 1, 0, 1, 1, 1]),
    "indicator": ([1, 5, 5, 9, 5, 7], [1, 2 / 3, 0, 1, 2 / 3, 1],
                  [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("missing", FILLED)
def test_missing_values_are_replaced_by_statistics_of_the_training_rows(write, missing):
    write("mine.csv", GAPS)
    age, ok, *indicators = FILLED[missing]
    blood = [[word == one for one in "ABC"] for word in ("A", "B", "", "A", "A", "C")]
    rows = np.column_stack([age, blood, ok, *indicators]).astype(np.float32)
    data = table(test=None, split="part", missing=missing)()
    np.testing.assert_array_equal(data.train, rows[:4])
    np.testing.assert_array_equal(data.test, rows[4:])
    scaled = table(test=None, split="part", missing=missing, standardize=True)()
    # Means of four numbers in float32.
    np.testing.assert_allclose(scaled.train[:, [0, 4]].mean(0), 0, atol=1e-7)
    np.testing.assert_array_equal(scaled.train[:, 5:], rows[:4, 5:])


def test_rows_with_missing_values_are_dropped(write):
    write("mine.csv", [*GAPS, "3,A,False,y,train", "2,A,True,x,test"])
    data = table(test=None, split="part", missing="drop")()
    assert data.train[:, 0].tolist() == [1, 9, 3] and data.train_labels.tolist() == [0, 1, 1]
    assert data.test[:, 0].tolist() == [7, 2]


@pytest.mark.parametrize(
    ("missing", "rows", "message"),
    [
        (
            "mean",
            [",1,x,train", ",2,y,train", "3,3,x,test"],
            "training rows with a value in column 'a', found",
        ),
        ("mean", ["1,1,x,train", ",2,,train", "3,3,x,test"], "row 2: expected a value in .*none in 'kind'"),
        ("drop", ["1,1,x,train", "1,2,y,train", ",3,x,test"], "expected test rows without missing values"),
        ("drop", ["1,1,x,train", ",2,y,train", "3,3,x,test"], "training samples of every class, found none"),
        ("mean", ["1,1,x,train", "b,,y,train", ",3,x,test"], "row 2: expected only numbers or only words in"),
    ],
)
def test_missing_values_that_cannot_be_replaced(write, missing, rows, message):
    write("mine.csv", ["a,b,kind,part", *rows])
    with pytest.raises(DataError, match=message):
        table(test=None, split="part", missing=missing)()


def test_numbers_beyond_float32_are_located(write):
    write("mine.csv", ["a,b,kind", "1,2,x", "3,-1e39,y", "4,5,x", "1,1,y"])
    with pytest.raises(DataError, match="mine.csv, row 2, column 'b': .* at most 3.4e.38 .*found -1e.39"):
        table()()
    np.savez("mine.npz", a=np.array([[[1.0, 1e39]]] * 4), kind=[0, 1] * 2)
    with pytest.raises(DataError, match="mine.npz, row 1, column 1, 2: expected numbers of at most"):
        table(file="mine.npz")()
    write("mine", ["1 1:2", "0 2:1e39"])
    with pytest.raises(DataError, match="finite numbers, found inf in row 2, column 2 .float32."):
        table(file="mine", target="label")()


@pytest.mark.parametrize("type", [np.float64, np.float32])
@pytest.mark.parametrize("value", [0.0, 0.1, 14.62, 1e6 / 3, -1e-30, 1e8, 3e30])
@pytest.mark.parametrize("step", [0, 1e-17, 1e-12, 1e-3, 1])
def test_constant_columns_are_recognised_relative_to_their_size(value, step, type):
    """Agrees with scikit-learn for columns that are constant but for one row."""
    column = np.full((10, 1), value).astype(type).astype(np.float64)
    column[3] += step * abs(value)
    rows = np.concatenate([column, column + abs(value)])
    expected = StandardScaler().fit(column).transform(rows)
    found = standardized(rows, np.arange(10))
    # The means differ by the rounding of sums, divided by a deviation of at least 1e-13 of the size.
    np.testing.assert_allclose(
        found, expected, rtol=1e-2, atol=2e-16 * abs(value) + 1e-2 * (0 < step < 1e-11)
    )
    for power in (800, -800):  # also where squares overflow or underflow; a power of two changes no digit
        np.testing.assert_array_equal(
            standardized(np.ldexp(rows, power), np.arange(10)),
            np.ldexp(found, power) if np.ptp(found[:10]) == 0 else found,
        )


def test_an_array_that_is_twice_in_an_archive_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", a=np.ones((4, 1)), kind=[0, 1, 0, 1])
    with zipfile.ZipFile("mine.npz", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile
        archive.writestr("kind.npy", archive.read("kind.npy"))
    with pytest.raises(DataError, match="found two arrays called kind"):
        table(file="mine.npz")()


def test_a_numpy_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures, labels = np.random.default_rng(1).random((10, 1, 3, 3)), np.arange(10) % 3
    np.savez("mine.npz", pictures=pictures, kind=labels, writer=np.array(list("abcabcabca")))
    data = table(file="mine.npz", client="writer")()
    train, test = halves(labels)
    np.testing.assert_array_equal(data.train.numpy(), pictures.astype(np.float32)[train])
    np.testing.assert_array_equal(data.test_labels.numpy(), labels[test])
    assert data.shape == (1, 3, 3) and data.owner_names == ("a", "b", "c")


def test_libsvm_files_with_different_numbers_of_columns(write):
    write("mine", ["+1 1:0.5 3:2", "-1 2:1", "+1 1:4"])
    write("mine.t", ["-1 4:0.25", "+1 1:1"])
    data = build(USER_DATASETS["table"], {"file": "mine", "test": "mine.t"}, "data set 'table'")()
    assert data.train.tolist() == [[0.5, 0, 2, 0], [0, 1, 0, 0], [4, 0, 0, 0]]
    assert data.test.tolist() == [[0, 0, 0, 0.25], [1, 0, 0, 0]]
    assert data.class_names == ("-1", "1") and data.train_labels.tolist() == [1, 0, 1]


def with_cell(row: int, old: str, new: str) -> list[str]:
    made = lines()
    assert old in made[row]
    made[row] = made[row].replace(old, new)
    return made


B = repr(float(NUMBERS[1, 1]))
MANY = ["a,word,kind", *(f"1,w{i}x,{i % 2}" for i in range(300))]
TEXTS = {
    "a gap": (with_cell(3, "green", ""), "csv, row 3: .* none in 'colour' .*: .*drop = .\"colour\"., or set"),
    "NA": (with_cell(5, "blue", "NA"), "mine.csv, row 5: expected a value in every column, found none"),
    "no label": (with_cell(4, "bad", ""),
     "row 4: .* found none in 'kind' .1 of 12 rows, .*: fill them in, or leave out the rows$"),
    "a word": (with_cell(2, B, "?"), r"row 2: expected only numbers .* 'b', .* '\?', but .* elsewhere"),
    "decimal commas": ([f'"{i},5",{i % 2}' if i else "a,kind" for i in range(9)],
     "mine.csv: expected decimal points in column 'a', found '1,5'"),
    "infinite": (with_cell(2, B, "inf"), "row 2: expected finite .* 'b', found inf"),
    "many words": (MANY, "expected at most 256 different words in column 'word', .* found 300"),
    "semicolons": (["a;kind", "1;x", "2;y"], "found one column, whose cells seem to be separated by ';'"),
    "a long row": ([*lines(), "1,2,3,4,5,6"], "found Error tokenizing .* Expected 5 fields in line 14"),
    "long rows": ([lines()[0], *(f"{one},1" for one in lines()[1:])], "expected a header line, then rows"),
    "a quotation mark": (with_cell(3, "green", '"a" b'),
     "mine.csv: .* found ',' expected after '\"' in the row that begins in line 4: .*set quoted = false"),
    "an open quotation mark": (with_cell(3, "green", '"a'), "the row that begins in line 4: double"),
    "a name twice": (["a,a,kind", "1,2,x"], "two columns called 'a'"),
    "no rows": (lines(0), "found no rows"),
    "empty": ([], "expected a header line"),
    "fractions": (lines(label=NUMBERS[:, 0].tolist()),
     r"row 1: expected words or whole numbers in 'kind', found '-?\d"),
    "one class": (lines(label=["x"] * 12), "mine.csv: expected at least two classes, found 1 \\(x\\)"),
    "no features": (["kind", "x", "y"], "expected columns of features in addition to kind, found none"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), TEXTS.values(), ids=TEXTS)
def test_errors_in_a_table_of_text(write, rows, message):
    write("mine.csv", rows)
    with pytest.raises(DataError, match=message):
        table()()


@pytest.mark.parametrize(("options", "message"), [
    (dict(file="mnie.csv"), "the data set lacks a file: expected one of mnie.csv, .* found no such file"),
    (dict(target="kid"), "mine.csv has no column 'kid': did you mean 'kind'"),
    (dict(client="hospital"), "mine.csv has no column 'hospital': expected one of a, b, colour"),
    (dict(test="other.csv"), "other.csv has no column 'colour'"),
    (dict(file="other.csv", test="mine.csv"), "other.csv has no column 'colour'"),
    (dict(test=None, split="colour"), "row 1: expected train, validation or test .* found 'red'"),
    (dict(file="half.csv", test=None, split="part"), "half.csv: expected test rows, found none"),
    (dict(test="none.csv"), "none.csv: expected a header line, .*, found no rows"),
    (dict(test="new.csv"), r"training samples of every class, found none of 'new' \(but 3 in test\)"),
    (dict(test=0.01), "test = 0.01 of 12 samples holds out 0: expected at least one"),
])  # fmt: skip
def test_errors_in_files_and_columns(write, options, message):
    write("mine.csv", lines())
    write("other.csv", ["a,b,member,kind", "1,2,True,good"])
    write("none.csv", lines(0))
    write("half.csv", ["a,kind,part", "1,good,train", "2,bad,train"])
    write("new.csv", [lines()[0], *lines(label=["new"] * 12)[3:6]])
    with pytest.raises(ValueError, match=message):
        table(**options)()


@pytest.mark.parametrize(("options", "message"), [
    (dict(test=None), "expected either test .a fraction of the rows, .* or split .*, got neither"),
    (dict(split="part"), "got both"),
    (dict(test=1.2), "test: expected a fraction between 0 and 1, or a file, got 1.2"),
    (dict(separator=""), "separator"),
    (dict(test=1), "test: expected a fraction between 0 and 1, or a file, got 1"),
    (dict(test=None, split="part", validation="a.csv"), "either validation .* or split .*, got both"),
    (dict(test="later.npz"), "expected files of one format, got 'mine.csv' and 'later.npz'"),
    (dict(file="a9a"), "'a9a' is read as LIBSVM text, .*: leave out target, split, client and groups"),
    (dict(file="mine.npz", drop=["a"]), "drop applies only to .csv and .tsv files"),
    (dict(file="mine.npz", encoding="latin-1"), "encoding applies only to .csv and .tsv files"),
    (dict(file="mine", target="label", quoted=False), "quoted applies only to .csv and .tsv files"),
    (dict(file="mine.npz", separator=";"), "separator applies only to .csv and .tsv files"),
    (dict(file="mine.npz", encoding="latin-1"), "encoding applies only to .csv and .tsv files"),
    (dict(group_features=True), "group_features has no effect without groups"),
    (dict(file="mine.npz", groups=["a"], group_features=True), "group_features applies only to .csv and"),
    (dict(label="kind"), "has no setting 'label'"),
    (dict(drop=["kind"]), "drop: expected columns other than those of target, .* got 'kind'"),
    (dict(groups=["kind"], group_features=True), "group_features would make the target 'kind' a feature"),
])  # fmt: skip
def test_conflicting_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        table(**options)


@pytest.mark.parametrize(("arrays", "message"), [
    (dict(more=np.zeros(4)), "expected one array of samples in addition to kind, found samples, more"),
    (dict(samples=np.array(list("abcd"))), "expected numbers .rows, .... in samples, found type <U1"),
    (dict(samples=np.zeros((4, 0))), r"expected numbers .rows, .... in samples, .* shape \(4, 0\)"),
    (dict(samples=np.zeros(4)), "expected numbers .rows, .... in samples, found type float64"),
    (dict(kind=np.arange(3)), r"expected 4 entries in kind, one per row of samples, found shape \(3,\)"),
    (dict(kind=np.array([b"\xe9", b"a"] * 2)), "row 1: expected words or whole .* in 'kind', found b'"),
    (dict(kind=np.array(["2020-01-01", "NaT"] * 2, dtype="datetime64[D]")),
     "row 2: expected words or whole numbers in 'kind', found None"),
    (dict(samples=np.full((4, 2), np.nan)), "row 1: expected finite numbers in samples"),
    (dict(samples=np.array([{}] * 4)), "mine.npz: expected a NumPy archive with arrays of numbers"),
])  # fmt: skip
def test_errors_in_a_numpy_archive(tmp_path, monkeypatch, arrays, message):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", **{"samples": np.ones((4, 2)), "kind": np.arange(4) % 2} | arrays)
    with pytest.raises(DataError, match=message):
        table(file="mine.npz")()


def test_errors_in_libsvm_text(write, monkeypatch):
    write("mine", [])
    with pytest.raises(DataError, match="mine: expected LIBSVM text, or a .* file, found no rows"):
        table(file="mine", target="label")()
    write("mine", ["+1 1:0.5", "-1 2:x"])
    with pytest.raises(DataError, match="mine: expected LIBSVM text, or a .* file, found in line 2"):
        table(file="mine", target="label")()
    monkeypatch.setattr(libsvm, "host_memory", lambda: 2**20)
    write("mine", [f"{i % 2} {1 + i}:1" for i in range(8)] + ["1 10000000:1"])
    message = (
        "mine: 9 rows of 10,000,000 columns take 343.3 MiB as dense float32, this machine has 1.0 MiB: if "
        "the largest column number, 10,000,000 in row 9, is a mistake.*fewer columns"
    )
    with pytest.raises(DataError, match=message):
        table(file="mine", target="label")()


def test_libsvm_text_that_is_large_only_as_dense_samples_causes_a_warning(write, monkeypatch):
    monkeypatch.setattr(libsvm, "LARGE", 2**10)
    write("mine", [f"{i % 2} {1 + i}:1" for i in range(8)] + ["1 1000:1"])
    message = "mine: 9 rows of 1,000 columns, 0.1 % of them not 0, take 0.0 MiB as dense float32"
    with pytest.warns(UserWarning, match=message):
        data = table(file="mine", target="label")()
    assert data.train.shape[1] == 1000 and data.train.sum() + data.test.sum() == 9


REVIEWS = ["review,mood", '"Good, really",happy', "null,sad", '"He said ""no""",sad', "42,happy"]


def texts(**changes):
    given = {"file": "reviews.csv", "text": "review", "target": "mood", "test": 0.25}
    return build(USER_TEXTS["texts"], given | changes, "set of texts 'texts'")


def test_texts_and_their_positive_label(write):
    write("reviews.csv", REVIEWS)
    data = texts(positive="happy")()
    train, test = halves([0, 1, 1, 0])  # happy, sad
    reviews, positive = ["Good, really", "null", 'He said "no"', "42"], np.array([1, 0, 0, 1])
    assert data.train == [reviews[row] for row in train] and data.test == [reviews[row] for row in test]
    np.testing.assert_array_equal(data.train_labels, positive[train])
    np.testing.assert_array_equal(texts()().train_labels, 1 - positive[train])  # sad is the second label


def test_the_larger_of_two_numbers_is_positive(write):
    write("reviews.csv", ["review,mood", "a,+1", "b,-1", "c,+1", "d,-1"])
    data = texts(test=0.5)()
    labels = dict(zip(data.train + data.test, [*data.train_labels, *data.test_labels]))
    assert labels == {"a": 1, "b": 0, "c": 1, "d": 0}


def test_quotation_marks_that_are_characters(write):
    """A mark at the beginning of one cell and at the end of a later one, which enclose rows for pandas."""
    rows = ['"Good', "42", 'so "so" "so"', 'He said "no"']
    write("reviews.tsv", ["review\tmood", *(f"{one}\t{i % 2}" for i, one in enumerate(rows))])
    data = texts(file="reviews.tsv", test=0.5, quoted=False)()
    assert sorted(data.train + data.test) == sorted(rows)
    write("reviews.tsv", ["review\tmood", '"Good\t1', '42"\t0', "x\t1", "y\t0"])
    message = "reviews.tsv: 1 rows have a quoted cell of several lines that look like rows, .* line 2 on: set"
    with pytest.warns(UserWarning, match=message):
        assert len(texts(file="reviews.tsv", test=0.4)().train) == 2
    write("reviews.tsv", ["review\tmood", '"Good\nbad"\t1', '"a\tb"\t0', "x\t1", "y\t0"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts(file="reviews.tsv", test=0.4)()


@pytest.mark.parametrize(("row", "options", "message"), [
    (",sad", {}, "reviews.csv, row 5: expected a value in every column, found none in 'review'"),
    ("so so,other", {}, "expected two labels or the setting positive in column 'mood', .* 3 labels"),
    ("ok,sad", {"positive": "glad"}, "expected 'glad' in column .* 2 labels: .*expected one of happy, sad"),
    ("ok,sad", {"text": "text"}, "reviews.csv has no column 'text'"),
    ("ok,sad", {"file": "reviews.npz"}, "expected a .csv or .tsv file with a column of texts, got 'rev"),
])  # fmt: skip
def test_errors_in_texts(write, row, options, message):
    write("reviews.csv", [*REVIEWS, row])
    with pytest.raises(ValueError, match=message):
        texts(**options)()
