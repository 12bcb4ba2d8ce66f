"""Deep AUC maximisation on texts (Zhang & Gao n.d., section 5).

Interpretation of the paper: It uses a two-layer recurrent network with two outputs and one prediction h. Here
h is the positive minus the negative output, so with ``score = "sigmoid"`` it is the softmax probability of
the positive class. Words without a vector are left out, and texts are cut to the first ``length`` words. A
text without any word that has a vector is one word with the vector 0, so that means over words are defined.
The vectors are not trained.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Named
from mpifed.data import Labelled, TextDataset, read
from mpifed.data.samples import splits, splits_of
from mpifed.data.texts import encode, word_vectors, words_of
from mpifed.models import RNN, SequenceModel
from mpifed.problems.auc import AUC

__all__ = ["TextAUC"]

#: Number of test texts that are scored at once, which limits the memory of an evaluation.
CHUNK = 64


class _EncodedTexts:
    """Texts as row numbers of their words in the table of vectors, int64 ``[n, length]``, padded with 0."""

    def __init__(self, stored: np.ndarray):
        self._stored, self.shape = stored, torch.Size(stored.shape)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._stored[rows.numpy()].astype(np.int64))


@problem_settings
class TextAUC(AUC):
    """The minimax problem of DeepAUC for texts that a recurrent network reads as sequences of word vectors.

    Clients store row numbers of words; one table of vectors is shared.
    """

    dataset: TextDataset = Field(
        description='set of texts: a name, a table "texts", or a user-defined function'
    )
    model: SequenceModel = Field(default=RNN(), description="network h, with two outputs")
    length: int = Field(default=40, ge=1, description="maximum number of words of a text")
    vectors: str = Field(
        default="auto",
        description="file of word vectors; random: one random vector per word; auto: the file "
        "googlenews300_small_f16.npz, or random if it does not exist",
    )
    dimension: int = Field(default=300, ge=1, description="dimension of random vectors")

    needs = {"dimension": ("random vectors", lambda problem: problem.vectors in ("auto", "random"))}

    source = "Zhang & Gao n.d., section 5"
    cites = ("zhang_nd_fednsgdam",)

    def read_once(self, data_dir: str | None = None) -> tuple[Labelled, torch.Tensor]:
        """Read and encode the texts, and read the vectors of their words.

        Returns:
            The encoded texts, with the files of texts and vectors, and the table of vectors.
        """
        texts = read(self.dataset, data_dir)
        vocabulary: dict[str, str] = {}  # each word is stored once
        given = {name: getattr(texts, name) for name in ("train", "test", "validation")}
        words = {
            name: [[vocabulary.setdefault(word, word) for word in words_of(text)] for text in part]
            for name, part in given.items()
            if part is not None
        }
        vectors = word_vectors(self.vectors, vocabulary, self.dimension, data_dir)
        encoded = Labelled(
            **{name: _EncodedTexts(encode(part, vectors.rows, self.length)) for name, part in words.items()},
            **{f"{name}_labels": torch.from_numpy(getattr(texts, f"{name}_labels")) for name in words},
            files={**texts.files, **vectors.files},
            owners=texts.owners,
            owner_names=texts.owner_names,
        )
        return encoded, torch.from_numpy(vectors.table)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Partition the encoded texts.

        Raises:
            ValueError: data and partition are inconsistent, or a file is missing.
        """
        texts, self._table = self.read_once(data_dir)
        self.files, self._tables = texts.files, {}
        self.network = self.model.shapes((self.length, self._table.shape[1]), outputs=2)
        self._divide(splits(splits_of(texts), self.validation, seed), [1], seed, texts)

    def class_names(self) -> list[str]:
        return ["negative", "positive"]

    def outputs(self, x: Named, samples: torch.Tensor) -> torch.Tensor:
        """Return the positive minus the negative output, ``[b]``."""
        if samples.device not in self._tables:
            self._tables[samples.device] = self._table.to(samples.device)
        vectors = self._tables[samples.device][samples].to(x["a"].dtype)
        lengths = (samples > 0).sum(1).clamp(min=1)
        negative, positive = self.model(x, vectors, lengths).unbind(1)
        return positive - negative

    @torch.no_grad()
    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Return the outputs for the test texts ``rows``, ``[n]``."""
        chunks = self._held_out_chunks(rows, x["a"].device, size=CHUNK)
        return torch.cat([self.outputs(x, chunk) for chunk in chunks])
