from types import SimpleNamespace

import pytest
import torch

from hf_bidir.finetune.threads import SMALL_MODEL, suitable_threads


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_within(parameters, device="cpu"):
    model = SimpleNamespace(num_parameters=lambda: parameters)
    with suitable_threads(model, SimpleNamespace(device=torch.device(device))):
        return torch.get_num_threads()


def test_a_small_model_gets_two_threads_and_the_number_is_restored():
    assert threads_within(SMALL_MODEL - 1) == 2
    assert torch.get_num_threads() == 3


def test_one_thread_stays_one():
    torch.set_num_threads(1)
    assert threads_within(SMALL_MODEL - 1) == 1


@pytest.mark.parametrize(("parameters", "device"), [(SMALL_MODEL, "cpu"), (1000, "meta")], ids=["large", "not-a-cpu"])
def test_other_models_keep_their_threads(parameters, device):
    assert threads_within(parameters, device) == 3


def test_the_users_omp_num_threads_takes_precedence(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_within(1000) == 3
