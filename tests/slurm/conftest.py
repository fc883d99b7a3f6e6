"""A Slurm cluster of one machine: controller, node and authentication run in a temporary folder."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
# A requeued job waits until its credential has expired: 120 seconds by default.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=low Nodes={host} Default=YES PriorityTier=1 GraceTime=10 PreemptMode=REQUEUE
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


class Cluster:
    def __init__(self, environment):
        self.environment = environment

    def run(self, *command, folder=None):
        done = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number):
        """The fields of a job, such as JobState and Restarts."""
        words = self.run("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, condition, seconds=240):
        """Return the first true value of the condition."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, self.run("squeue", "--long")
            time.sleep(0.2)
        return value

    def wait_for_job(self, number, *states):
        """Return the fields of the job when it is in one of these states."""
        return self.wait(lambda: (job := self.job(number))["JobState"] in states and job)


def free_ports(number):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(*command, environment):
    """A program in the foreground, ended at the end of the context."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def cluster():
    path = f"{os.environ['PATH']}:/usr/sbin"
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=path)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("the node of the cluster needs root")
    host = socket.gethostname().partition(".")[0]
    with TemporaryDirectory() as name, ExitStack() as stack:  # a socket has a short path
        folder = Path(name)
        environment = {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
        text = CONFIGURATION.format(host=host, folder=folder, ports=free_ports(2))
        (folder / "slurm.conf").write_text(text)
        for made in ("state", "spool"):
            (folder / made).mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        options = {"key-file": key, "socket": folder / "munge.socket"}
        options |= {f"{kind}-file": folder / f"munge.{kind}" for kind in ("pid", "log", "seed")}
        options = [f"--{name}={value}" for name, value in options.items()]
        munged = ["munged", "--foreground", "--force", *options]
        stack.enter_context(running(*munged, environment=environment))
        cluster = Cluster(environment)
        cluster.wait((folder / "munge.socket").exists)
        for daemon in ("slurmctld", "slurmd"):
            stack.enter_context(running(daemon, "-D", environment=environment))
        cluster.wait(lambda: subprocess.run(["sinfo"], env=environment, capture_output=True).returncode == 0)
        cluster.wait(lambda: "idle" in cluster.run("sinfo", "--noheader"))
        yield cluster
        cluster.run("scancel", "--full", "--user=root")
