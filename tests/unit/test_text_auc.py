"""Words, their vectors, and AUC maximisation on texts."""

from __future__ import annotations

import gzip

import everything  # noqa: F401  (registers the sentences)
import numpy as np
import pytest
import torch

from mpifed.base.settings import build
from mpifed.data import TEXTS, DataError, Texts
from mpifed.data.texts import VECTORS, encode, random_vectors, read_vectors, word_vectors, words_of
from mpifed.problems import DeepAUC, TextAUC

SMALL = dict(
    dataset="sentences",
    clients=2,
    vectors="random",
    dimension=4,
    length=5,
    model={"name": "rnn", "hidden": 3},
)


def prepared(seed=0, **settings) -> TextAUC:
    problem = build(TextAUC, {**SMALL, **settings}, "problem")
    problem.prepare(seed)
    return problem


def point(problem) -> tuple[torch.Tensor, torch.Tensor]:
    x = problem.initial(np.random.default_rng(0))["x"]
    rng = np.random.default_rng(1)
    return x + 0.3 * torch.from_numpy(rng.standard_normal(len(x))), torch.tensor([0.4]).double()


def archive(folder, words, vectors, name=VECTORS):
    (folder / "wordvectors").mkdir(exist_ok=True)
    np.savez(
        folder / "wordvectors" / name, words=np.array(words), vectors=np.asarray(vectors, dtype=np.float16)
    )
    return str(folder)


@pytest.mark.parametrize("text, words", [
    ("It's GOOD, isn’t it?", ["it's", "good", "isn't", "it"]),
    ("does n't -- 'quoted' rock'n'roll", ["does", "n't", "quoted", "rock'n'roll"]),
    ("Café n°5 under_score a1 ", ["café", "n", "5", "under", "score", "a1"]),
    ("cafe\u0301", ["café"]),
    (" ... !", []),
])  # fmt: skip
def test_words_are_runs_of_letters_and_digits_in_lower_case(text, words):
    assert words_of(text) == words


def test_texts_become_rows_of_known_words_and_zeros():
    rows = {"good": 2, "film": 1}
    tokens = encode([["a", "good", "film"], [], ["film", "x", "film", "good", "good"]], rows, 3)
    assert tokens.dtype == np.uint8 and tokens.tolist() == [[2, 1, 0], [0, 0, 0], [1, 1, 2]]
    tokens = encode([["film"]], {"film": 70_000}, 2)  # numbers of as few bytes as hold all rows
    assert tokens.dtype == np.uint32 and tokens.tolist() == [[70_000, 0]]


def test_vectors_of_an_archive_and_of_texts_are_the_same(tmp_path):
    words, vectors = ["good", "The", "bad", "film"], np.arange(12).reshape(4, 3) / 4
    folder = archive(tmp_path, words, vectors)
    lines = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in zip(words, vectors))
    (tmp_path / "wordvectors" / "glove.txt").write_text(lines + ". . 1 2 3\n")
    with gzip.open(tmp_path / "wordvectors" / "w2v.txt.gz", "wt") as file:
        file.write("4 3\n" + lines)
    for name in (VECTORS, "glove.txt", "w2v.txt"):
        read = read_vectors(name, {"film", "good", "unknown"}, folder)
        assert read.rows == {"film": 1, "good": 2} and list(read.files) == [name]
        assert read.table.dtype == np.float32
        assert read.table.tolist() == [[0, 0, 0], vectors[3].tolist(), vectors[0].tolist()]


@pytest.mark.parametrize("content", ["other 1 2 3\n", ""])
def test_files_without_the_words_are_refused(tmp_path, content):
    """Damaged files are in ``test_damaged_data``."""
    (tmp_path / "wordvectors").mkdir()
    (tmp_path / "wordvectors" / "mine.txt").write_text(content)
    with pytest.raises(DataError, match="found none"):
        read_vectors("mine.txt", {"film"}, str(tmp_path))
    with pytest.raises(DataError, match="yours.txt"):
        word_vectors("yours.txt", {"good"}, 3, str(tmp_path))  # a file that is named must exist


def test_random_vectors_depend_on_the_word_and_the_seed_alone():
    few, many = random_vectors({"good", "bad"}, 50), random_vectors({"film", "bad", "good"}, 50)
    for word in few.rows:
        np.testing.assert_array_equal(few.table[few.rows[word]], many.table[many.rows[word]])
    assert (few.table[0] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(many.table[1:], axis=1), 1, rtol=1e-6)  # float32
    assert np.abs(many.table[1] @ many.table[2]) < 0.7  # five standard deviations, 1/√50 each
    assert not np.allclose(few.table, random_vectors({"good", "bad"}, 50, seed=1).table)
    vectors = [random_vectors(words, d) for words, d in (("a", 3), ("ab", 3), ("a", 4))]
    assert len({one.files["word vectors"].digest for one in vectors}) == 3


def test_fallback_to_random_vectors_is_recorded(tmp_path):
    assert prepared(vectors="auto", p="client").files  # wherever the default places lead
    absent = word_vectors("auto", {"good"}, 7, str(tmp_path))
    assert absent.table.shape == (2, 7) and "random vector" in absent.files["word vectors"].path
    present = word_vectors("auto", {"good"}, 7, archive(tmp_path, ["good"], [[1, 2]]))
    assert present.table.tolist() == [[0, 0], [1, 2]] and list(present.files) == [VECTORS]
    assert list(word_vectors("random", {"good"}, 7, str(tmp_path)).files) == ["word vectors"]


def test_loss_is_that_of_deep_auc_for_the_difference_of_the_outputs():
    problem = prepared()
    x, y = point(problem)
    named, alpha = problem.variables().unflatten("x", x), {"alpha": y}
    tokens, positive = problem.client_data(1)
    h = []
    for row in tokens:
        vectors = problem._table[row[row > 0]].double()[None]
        negative, above = problem.model(named, vectors, torch.tensor([vectors.shape[1]]))[0]
        h.append(above - negative)
    twin = DeepAUC(dataset="digits", model="linear")
    twin._ratio, twin.outputs = problem._ratio, lambda x, samples: torch.stack(h)
    # The same formula on the same numbers; padded sequences add in another order.
    torch.testing.assert_close(
        problem.loss(named, alpha, (tokens, positive)),
        twin.loss(named, alpha, (tokens, positive)),
        rtol=0,
        atol=1e-13,
    )
    assert problem.predict(named, alpha, slice(2, 5)).shape == (3,) and problem.test_rows == 6


class MeanOfWords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(6, 2)

    def forward(self, vectors, lengths):
        return self.scores(vectors.sum(1) / lengths[:, None])


def test_a_text_without_known_words_is_one_word_without_meaning():
    problem = prepared(model=MeanOfWords, vectors="random", dimension=6)
    x, _ = point(problem)
    x = problem.variables().unflatten("x", x)
    empty = torch.zeros(1, problem.length, dtype=torch.int64)
    bias = x["scores.bias"]
    torch.testing.assert_close(problem.outputs(x, empty), (bias[1] - bias[0]).reshape(1))


def test_classes_that_are_not_listed_are_left_out():
    settings = dict(
        dataset="digits", model="linear", clients=2, positive_classes=(8, 3), negative_classes=(1, 5)
    )
    problem = DeepAUC(**settings)
    problem.prepare(0)
    held = [problem.client_labels(k) for k in range(2)]
    assert set(np.concatenate(held)) == {1, 3, 5, 8} and problem.class_names()[:4] == ["0", "1-", "2", "3+"]
    for labels, (images, positive) in zip(held, map(problem.client_data, range(2))):
        assert positive.tolist() == np.isin(labels, (3, 8)).tolist() and len(images) == len(labels)
    from sklearn.datasets import load_digits

    test = load_digits().target[4::5]  # every fifth image is a test image
    used = test[np.isin(test, (1, 3, 5, 8))]
    assert problem.test_rows == len(used) and problem.test_labels().tolist() == np.isin(used, (3, 8)).tolist()
    x = problem.variables().unflatten("x", problem.initial(np.random.default_rng(0))["x"])
    whole = torch.from_numpy(load_digits().images[4::5] / 16).unsqueeze(1)
    expected = problem.model(x, whole)[np.isin(test, (1, 3, 5, 8)), 0]
    scores = torch.cat([problem.predict(x, {}, rows) for rows in (slice(0, 50), slice(50, None))])
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)  # kernels add in another order
    with pytest.raises(ValueError, match="3 are both in positive_classes and in negative_classes"):
        DeepAUC(**{**settings, "negative_classes": (3, 5)}).prepare(0)


@pytest.fixture
def reviews(monkeypatch):
    """480 reviews, half of them positive."""
    train, test = ((["bad", "good"] * (n // 2), np.arange(n) % 2) for n in (400, 80))
    monkeypatch.setitem(TEXTS, "reviews", lambda data_dir: Texts(*train, *test))


def test_positive_ratios_of_the_clients(reviews):
    thin = prepared(dataset="reviews", clients=8, imbalance=0.1)
    # 200 negatives, 22 positives
    assert sum(thin.client_size(k) for k in range(8)) == 222 and thin._ratio == 22 / 222
    ratios = (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)
    partition = {"name": "positive_ratios", "ratios": ratios}
    own = prepared(dataset="reviews", clients=8, partition=partition, p="client")
    for k, ratio in enumerate(ratios):
        _, positive, p = own.client_data(k)
        assert positive.mean().item() == pytest.approx(ratio, abs=0.02)  # to the nearest sample of 26 to 33
        assert (p == positive.mean()).all() and (own.client_labels(k) == positive.numpy()).all()
    assert own.class_names() == ["negative", "positive"]
