"""A vector folder of many rows, by processes that are killed at random moments, and without kills.

python tests/benchmarks/kills.py TEXTS.txt.gz FOLDER [ROWS [KILLS [SECONDS]]]

Both folders are written in 16 shards, two processes of one thread at a time. In the first run, a
random one of them gets SIGKILL about every SECONDS, KILLS times, and its shard continues by the
same command. Then the files of both folders are compared, and `check`, `cat` and `search` measured.
FOLDER needs 700 bytes a row for each of the two.
"""

import filecmp
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timing import print_table, read_texts, write_texts
from usage import check_arguments

SENTKIT = [sys.executable, "-m", "sentkit"]
SHARDS = 16
PROCESSES = 2
QUERIES = 1000
FRONT_WORDS = 4096  # a text starts with two of them, which no other text starts with


def write_inputs(path, texts, queries, count):
    """Short texts of words of the sentences, of which no two are equal; and the queries."""
    sentences = read_texts(path, 300_000)
    write_texts(queries, sentences[:QUERIES])
    words = [word for sentence in sentences for word in sentence.split()]
    front = [word for word, _ in Counter(words).most_common(FRONT_WORDS)]
    draw = random.Random(7)
    with texts.open("w") as file:
        for row in range(count):
            pair = row * 7919 % FRONT_WORDS**2  # 7919 is odd, so no pair comes twice
            start = int(draw.random() * len(words))
            stop = start + 1 + int(draw.random() * 6)
            text = [front[pair // FRONT_WORDS], front[pair % FRONT_WORDS], *words[start:stop]]
            file.write(" ".join(text) + "\n")


class Processes:
    """The running processes, how many of them were killed, and what they took."""

    def __init__(self):
        self.running = []
        self.kills = 0
        self.done = threading.Event()
        self.usages = []

    def finish(self, command):
        """Run a command again until no kill ends it."""
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            pid = subprocess.Popen(command).pid
            self.running.append(pid)
            _, status, usage = os.wait4(pid, 0)
            self.running.remove(pid)
            self.usages.append(usage)
            code = os.waitstatus_to_exitcode(status)
        assert code == 0, f"{command} exited with {code}"

    def kill(self, count, seconds):
        """Kill a random process after a random time, until this is done."""
        draw = random.Random(8)
        while self.kills < count and not self.done.wait(draw.uniform(0, 2 * seconds)):
            if self.running:
                os.kill(draw.choice(self.running), signal.SIGKILL)
                self.kills += 1

    def seconds(self):
        return sum(usage.ru_utime + usage.ru_stime for usage in self.usages)

    def peak(self):
        """Megabytes of the largest process."""
        return max(usage.ru_maxrss for usage in self.usages) / 1024


def encode(texts, folder, kills=0, seconds=0.0):
    """Write a vector folder in shards; return its processes, and elapsed seconds."""
    processes = Processes()
    command = [*SENTKIT, "encode", str(texts), "-m", "static", "-o", f"{folder}/", "--resume"]
    command += ["--store", "float16", "--threads", "1", "-q", "--shard"]
    start = time.perf_counter()
    killer = threading.Thread(target=processes.kill, args=(kills, seconds))
    killer.start()
    with ThreadPoolExecutor(PROCESSES) as pool:
        commands = [[*command, f"{shard}/{SHARDS}"] for shard in range(1, SHARDS + 1)]
        list(pool.map(processes.finish, commands))
    elapsed = time.perf_counter() - start
    processes.done.set()
    killer.join()
    return processes, elapsed


def measured(command, output):
    """Elapsed seconds, CPU seconds and peak memory of a command."""
    start = time.perf_counter()
    with Path(output).open("wb") as file:
        process = subprocess.Popen(command, stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def print_folder(name, folder, texts, kills, seconds):
    processes, elapsed = encode(texts, folder, kills, seconds)
    files = list(folder.iterdir())
    gigabytes = sum(file.stat().st_size for file in files) / 1e9
    cells = [name, processes.kills, f"{elapsed / 3600:.3f}", f"{processes.seconds():.0f} s"]
    cells += [f"{processes.peak():.0f} MB", f"{gigabytes:.2f} GB", len(files)]
    print_table("run | kills | hours | CPU time | peak of a process | size | files", [cells])


def main():
    check_arguments(__doc__, least=2, most=5)
    path, folder, *sizes = sys.argv[1:]
    rows, kills, seconds = [*map(int, sizes), 10_000_000, 20, 5][:3]
    folder = Path(folder)
    texts = folder / "rows.txt"
    queries = folder / "queries.txt"
    # Its memory would count as that of the processes that this one starts.
    writer = multiprocessing.Process(target=write_inputs, args=(path, texts, queries, rows))
    writer.start()
    writer.join()
    print(f"{rows:,} rows, {texts.stat().st_size / 1e6:.0f} MB of text")
    killed = folder / "killed"
    whole = folder / "whole"
    print_folder("with kills", killed, texts, kills, seconds)
    print_folder("without kills", whole, texts, 0, 0)
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in killed.iterdir())
    _, different, errors = filecmp.cmpfiles(whole, killed, names, shallow=False)
    print(f"{len(names)} files, of which {len(different) + len(errors)} differ: {different[:3]}\n")

    vectors = folder / "queries.safetensors"
    model = ["-m", "static", "-f", "-o", str(vectors)]
    subprocess.run([*SENTKIT, "encode", str(queries), *model], check=True)
    search = ["search", "--queries", str(vectors), "--corpus", str(killed)]
    commands = {
        "check": ["check", str(killed)],
        "check --deep": ["check", "--deep", str(killed)],
        "cat to /dev/null": ["cat", str(killed), "--vectors", "base64"],
        "search, 1,000 queries, top 10": search,
    }
    cells = []
    for name, command in commands.items():
        elapsed, cpu, peak = measured([*SENTKIT, *command], os.devnull)
        cells.append([name, f"{elapsed:.1f} s", f"{cpu:.1f} s", f"{peak:.0f} MB"])
    print_table("command | elapsed | CPU time | peak memory", cells)


if __name__ == "__main__":
    main()
