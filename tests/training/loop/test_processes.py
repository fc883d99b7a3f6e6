"""Several processes: which GPU and which connection each has, and the negatives of its anchors."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from sentkit.errors import UnavailableError
from sentkit.training.loop.processes import open_processes
from training.losses.formulas import loop_triplet, mean

CUDA = torch.device("cuda")
HARD = {"hard_negative_weight": 0.7, "readout": "mean"}
ROLES = ("anchor", "positive", "negative")
WORLDS = (1, 2, 3)


@pytest.fixture(scope="module")
def gathered(together, tmp_path_factory):
    """What each process has, by method and number of processes. Five rows are uneven for two and
    three.
    """
    folder = tmp_path_factory.mktemp("processes")
    methods = {"simcse-sup": HARD, "contrast": {"equal_texts": False}}
    cases = [
        (name, n, {"batch": 5} | more, "transformer")
        for name, more in methods.items()
        for n in WORLDS
    ]
    together("compute", folder, cases)
    return {
        (name, world): [torch.load(folder / f"{case}.{rank}.pt") for rank in range(world)]
        for case, (name, world, *_) in enumerate(cases)
    }


@pytest.mark.parametrize(("name", "bonus"), [("simcse-sup", 0.7), ("contrast", 0.0)])
def test_anchors_meet_their_own_hard_negatives_in_every_process(gathered, name, bonus):
    [alone] = gathered[name, 1]
    roles = ROLES if name == "simcse-sup" else ("anchor", "positive", "negatives")
    vectors = [alone["outputs"][role].view(5, -1) for role in roles]
    expected = mean(loop_triplet(*vectors, 0.05, bonus))

    for world in WORLDS:
        for process in gathered[name, world]:
            assert process["terms"]["contrast"].item() == pytest.approx(expected.item(), abs=1e-9)
            for role in process["outputs"]:
                torch.testing.assert_close(
                    process["outputs"][role], alone["outputs"][role], rtol=0, atol=1e-12
                )
    loss_of_other_negatives = mean(loop_triplet(*vectors[:2], vectors[2].roll(1, 0), 0.05, bonus))
    # A loss with other negatives is another one.
    assert bonus == 0 or abs(loss_of_other_negatives - expected) > 1e-3


@pytest.fixture
def gpus(monkeypatch):
    """A machine that has so many GPUs, and the arguments that connect the processes."""
    calls = []

    def make(count, local=1):
        for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": str(local)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", calls.append)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
        monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: calls.append(backend))
        monkeypatch.setattr(dist, "new_group", lambda **_: None)
        monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("end"))
        return calls

    return make


def test_each_process_has_its_gpu_and_nccl_and_numbers_of_the_host_pass_through_gloo(gpus):
    calls = gpus(2)
    with open_processes(CUDA) as processes:
        assert (processes.rank, processes.world, str(processes.device)) == (1, 2, "cuda:1")

    assert calls == [torch.device("cuda:1"), "cpu:gloo,cuda:nccl", "end"]


def test_processes_wait_longer_for_the_rows_than_for_a_step(gpus, monkeypatch):
    """The first process tokenizes all rows, which can take hours."""
    gpus(2)
    timeouts = {}
    groups = []
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, timeout: timeouts.update(step=timeout)
    )
    monkeypatch.setattr(
        dist, "new_group", lambda backend, timeout: timeouts.update(wait=timeout) or "waiting"
    )
    monkeypatch.setattr(dist, "all_reduce", lambda *_, group: groups.append(group))
    with open_processes(CUDA) as processes:
        processes.wait()

    assert timeouts["step"] < timedelta(hours=1)
    assert timeouts["wait"] >= timedelta(hours=12)
    assert groups == ["waiting"]


def test_a_process_without_a_gpu_is_unavailable(gpus):
    calls = gpus(1)
    with pytest.raises(
        UnavailableError, match='device "cuda:1": there is one CUDA device here'
    ) as error:
        next(iter(open_processes(CUDA).gen))

    assert error.value.exit_code == 69
    assert calls == []
