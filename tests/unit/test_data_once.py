"""Data that a node reads once: values in shared memory, and one reading of each file."""

import io
import os
import pickle

import numpy as np
import torch
from PIL import Image

from mpifed import Simulation
from mpifed.algorithms import FedAvg
from mpifed.data.image_folder import UserFolder
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.shared_memory import _shared_value
from mpifed.problems import Classification

VALUES = {
    "float32": torch.arange(10, dtype=torch.float32).reshape(2, 5),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "no rows": torch.zeros(0, 3),
    "array": np.arange(7, dtype=np.int64),
    "columns": np.arange(12.0).reshape(3, 4)[:, 1:3],
    "empty array": np.zeros((0, 2)),
    "words": np.array(["a", "bcd"]),
    "text": ["one", None, 2],
}


def test_a_value_in_shared_memory_is_the_same_and_leaves_no_file():
    files = os.listdir("/proc/self/fd")
    shared = _shared_value(SerialComm(), SerialComm(), VALUES)
    assert os.listdir("/proc/self/fd") == files
    assert not any("mpifed" in name for name in os.listdir("/dev/shm"))
    for name, value in VALUES.items():
        if isinstance(value, torch.Tensor):
            assert shared[name].dtype == value.dtype and torch.equal(shared[name], value), name
        else:
            assert type(shared[name]) is type(value)
            np.testing.assert_array_equal(shared[name], value)
    shared["float32"] += 1  # does not write to memory of other ranks
    assert shared["float32"].data_ptr() % 64 == 0


def test_a_simulation_reads_the_data_once_and_leaves_the_problem_unchanged():
    reads = []

    class Counting:
        def read_once(self, data_dir=None):
            reads.append(1)
            return super().read_once(data_dir)

    class Counted(Counting, Classification):
        pass

    problem = Counted(dataset="digits", clients=3)
    for times in (1, 2):
        Simulation(problem, FedAvg(K=1, eta=0.1), comm=SerialComm())
        assert len(reads) == times and "read_once" not in vars(problem)
    problem.prepare(0)
    assert len(reads) == 3


def test_another_process_decodes_the_images_of_a_folder_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        file = tmp_path / "photos" / ("train", "test")[number // 6] / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((3, 2, 3), number, np.uint8)).save(file)
    images = UserFolder(path="photos")()
    everything = images.train[:]
    packed = io.BytesIO()
    pickle.Pickler(packed, protocol=5, buffer_callback=lambda array: True).dump(images.train)
    copied = pickle.loads(packed.getvalue())
    assert torch.equal(copied[[4, 1]], everything[[4, 1]])
    assert copied._stored._known.sum() == 2
