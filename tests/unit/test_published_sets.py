"""The data sets by name are the published ones: their numbers, files and columns are as their homes state."""

import pytest

from mpifed.data import npz
from mpifed.data.registry import DATASETS, TEXTS

#: Rows for training and testing, columns, labels (LIBSVM's page of binary sets).
TABLES = {
    "a9a": (32561, 16281, 123, (-1, 1)),
    "w8a": (49749, 14951, 300, (-1, 1)),
    "mushrooms": (8124, 0, 112, (1, 2)),
    "phishing": (11055, 0, 68, (0, 1)),
}
FINE = ("train", "test", "fine_labels", 100)
IMAGES = {"cifar100": FINE, "cifar100-subset": FINE}
#: Rows of the files whose numbers are fixed.
ROWS = {
    "sst2": (67349, 872),
    "sentiment140": (1600000, None, None, 498, None),
    "yelp-reviews": (None, None),
    "yelp-polarity": (560000, 38000),
}
#: A line of each file of texts: its text and whether it is positive.
LINES = {
    "train.tsv": ("fine\t1", "fine", 1),
    "dev.tsv": ("bad\t0", "bad", 0),
    "training.1600000.processed.noemoticon.csv": ("4,id,date,query,user,fine", "fine", 1),
    "sentiment140_sample_20k.csv": ("0,id,date,query,user,bad", "bad", 0),
    "sentiment140_sample_10k.csv": ("0,id,date,query,user,bad", "bad", 0),
    "testdata.manual.2009.06.14.csv": ("2,id,date,query,user,so", "so", None),
    "testdata_manual.csv": ("4;1;id;date;query;user;fine", "fine", 1),
    "reviews_dev.csv": ("fine,place,Review Stars: 4.0", "fine", 1),
    "reviews_test.csv": ("so,place,Review Stars: 3.0", "so", None),
    "train.csv": ("2,fine", "fine", 1),
    "test.csv": ("1,bad", "bad", 0),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name):
    one = DATASETS[name]
    assert (one.name, one.train, one.test, one.columns, one.labels) == (name, *TABLES[name])


def test_images():
    ten = DATASETS["cifar10"]
    assert ten.train == tuple(f"data_batch_{number}" for number in (1, 2, 3, 4, 5))
    assert (ten.test, ten.labels, ten.classes) == ("test_batch", "labels", 10)
    assert set(ten.md5) >= {*ten.train, ten.test}
    for name, (train, *rest) in IMAGES.items():
        one = DATASETS[name]
        assert (one.train, [one.test, one.labels, one.classes]) == ((train,), rest)
    assert set(DATASETS["cifar100"].md5) >= {"train", "test"} and DATASETS["cifar100-subset"].md5 is None
    assert DATASETS["pneumoniamnist"].classes == 2
    assert npz.CHARACTERS == {"background": 964, "evaluation": 659}, "Omniglot has 1,623 characters"


def files(name):
    return [one for part in (TEXTS[name].train, TEXTS[name].test) for one in part]


@pytest.mark.parametrize("name", ROWS)
def test_texts(name):
    assert tuple(one.rows for one in files(name)) == ROWS[name]
    for one in files(name):
        line, text, label = LINES[one.file]
        cells = line.split(one.delimiter)
        assert len(cells) == one.columns and cells[one.text] == text and one.labels[cells[one.label]] == label


def test_stars_and_polarities():
    (reviews, _), tweets = files("yelp-reviews"), files("sentiment140")
    stars = {
        f"Review Stars: {number}.0": label for number, label in ((1, 0), (2, 0), (3, None), (4, 1), (5, 1))
    }
    assert reviews.labels == stars
    assert all(one.labels == {"0": 0, "2": None, "4": 1} for one in tweets)
    assert all(one.labels == {"1": 0, "2": 1} for one in files("yelp-polarity"))
    assert [one.encoding for one in tweets] == ["latin-1", "utf-8", "utf-8", "latin-1", "utf-8"]
    assert not any(one.quoted for one in files("sst2"))
