"""What labelled samples are held against, split by split."""

import pytest
import torch

from mpifed.data import DataError, Labelled

LABELS = torch.tensor([0, 1])


def labelled(**changes) -> Labelled:
    samples = torch.ones(2, 3)
    splits = dict(train=samples, train_labels=LABELS, test=samples, test_labels=LABELS)
    return Labelled(**splits | changes)


def test_the_validation_split_may_be_absent():
    plain, split = labelled(), labelled(validation=torch.zeros(1, 3), validation_labels=LABELS[:1])
    assert plain.validation is None and plain.validation_labels is None
    assert split.validation.tolist() == [[0, 0, 0]] and split.validation_labels.tolist() == [0]


@pytest.mark.parametrize("part", ["train", "test", "validation"])
@pytest.mark.parametrize(
    "samples, says",
    [
        (torch.ones(3, 3), "expected a label a sample, found 3 and 2"),
        (torch.tensor([[1.0, 2, 3], [1, float("nan"), 3]]), "expected finite numbers, found nan in row 1"),
    ],
)
def test_every_split_is_checked(part, samples, says):
    with pytest.raises(DataError, match=f"^{part}: {says}$"):
        labelled(**{"validation_labels": LABELS, part: samples})


@pytest.mark.parametrize("part", ["test", "validation"])
def test_samples_of_all_splits_have_one_shape(part):
    with pytest.raises(
        DataError, match=rf"^{part}: expected samples of shape \(3,\) as in train, found \(4,"
    ):
        labelled(**{"validation_labels": LABELS, part: torch.ones(2, 4)})
