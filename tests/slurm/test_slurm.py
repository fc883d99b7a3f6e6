"""examples/slurm on a real Slurm: a preempted job is requeued and gives the bytes of an undisturbed run."""

import pytest

from support import ROOT, SMALL, TEXTS, contents, copy_tokenizer, in_jsonl, with_program

pytestmark = pytest.mark.slurm
TWO_PROCESSES = ["--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1"]
TRAIN = "simcse texts.txt -m small --batch 4 --epochs 20 --lr 0.001 --threads 1 --save-every 50 -o"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED")


@pytest.fixture
def folder(tmp_path, cluster):
    """A folder with texts and a base, and `sentkit` on the PATH of the jobs."""
    import torch
    import transformers

    environment = with_program(tmp_path) | {"PYTHONPATH": str(ROOT)}
    cluster.environment |= {name: environment[name] for name in ("PATH", "PYTHONPATH")}
    (tmp_path / "texts.txt").write_text("".join(f"{text} {n}\n" for n in range(20) for text in TEXTS))
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path / "small")
    copy_tokenizer(tmp_path / "small")
    return tmp_path


def submit(cluster, folder, *command):
    """Submit a job. The node of the test has no declared memory, and 0 requests all of it."""
    return cluster.run("sbatch", "--parsable", "--mem=0", f"--chdir={folder}", *command)


def preempt(cluster, folder, number):
    """Run a short job of the partition `high` on the whole node; return the preempted job after it."""
    high = submit(cluster, folder, "--partition=high", "--exclusive", "--wrap=sleep 1")
    cluster.wait_for_job(high, "COMPLETED")
    return cluster.job(number)


def test_a_preempted_run_is_requeued_and_ends_with_the_bytes_of_an_undisturbed_one(cluster, folder):
    train = [str(ROOT / "examples/slurm/train.sbatch"), *TRAIN.split()]
    number = submit(cluster, folder, *TWO_PROCESSES, *train, "preempted")
    cluster.wait(lambda: list((folder / "preempted.part").glob("state*")))
    preempted = preempt(cluster, folder, number)
    done = cluster.wait_for_job(number, *ENDED)
    log = (folder / f"train-{number}.log").read_text()

    assert (preempted["JobState"], preempted["Restarts"]) == ("PENDING", "1"), log
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1"), log
    assert "stopped and saved at step" in log
    submit(cluster, folder, "--wait", *TWO_PROCESSES, *train, "whole")
    assert contents(folder / "preempted") == contents(folder / "whole")


def test_an_array_of_eight_tasks_continues_after_a_preemption(cluster, folder):
    """Two tasks run at a time, one on each CPU. The preempted ones continue their shards."""
    rows = [{"text": f"{text} {number}"} for number in range(30000) for text in TEXTS]
    (folder / "corpus.jsonl").write_text(in_jsonl(*rows))
    script = str(ROOT / "examples/slurm/encode.sbatch")
    flags = ["corpus.jsonl", "-m", "small", "--precision", "fp32", "--block-bytes", "64K", "-o"]
    job = submit(cluster, folder, "--cpus-per-task=1", "--array=0-7", script, *flags, "vectors/")
    cluster.wait(lambda: list((folder / "vectors").glob("0*.safetensors")))
    preempt(cluster, folder, f"{job}_0")
    tasks = [cluster.wait_for_job(f"{job}_{number}", *ENDED) for number in range(8)]
    logs = [(folder / f"encode-{job}_{number}.log").read_text() for number in range(8)]

    assert [task["JobState"] for task in tasks] == ["COMPLETED"] * 8, logs
    assert "1" in [task["Restarts"] for task in tasks], logs
    cluster.run("sentkit", "encode", *flags, "whole/", folder=folder)
    for name in ("vectors", "whole"):
        cluster.run("sentkit", "cat", name, "-o", f"{name}.safetensors", folder=folder)
    assert (folder / "vectors.safetensors").read_bytes() == (folder / "whole.safetensors").read_bytes()
