"""A vector folder refuses other settings and inputs, and flags that do not fit."""

import gzip
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from sentkit.errors import UsageError
from sentkit.flag_values import Shard, parse_shard
from sentkit.formats.vectors.file_writer import copy_block
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.model.transformer import device
from support import contents


def test_a_command_that_fails_at_its_first_rows_leaves_no_settings(encode, corpus):
    """The corrected command has other settings. A folder that has blocks, or other processes, keeps
    them.
    """
    renamed = Path(corpus).read_text().replace('"text"', '"title"')
    Path("titles.jsonl").write_text(renamed)

    failed = encode("titles.jsonl", "-o", "new/")
    assert (failed.code, Path("new").exists()) == (65, False)
    assert encode("titles.jsonl", "-o", "new/", "--field", "text=title").code == 0

    assert encode("titles.jsonl", "-o", "shared/", "--shard", "1/2").code == 65
    assert Path("shared/run.json").exists()
    Path("late.jsonl").write_text("".join([*renamed.splitlines(True)[:20], "{}\n"]))
    assert encode("late.jsonl", "-o", "late/", "--field", "text=title").code == 65
    assert Path("late/run.json").exists()


def rows_of_blocks(*rows):
    """The content of an input with one row for each block of 200 bytes."""
    return b"".join(row.ljust(199) + b"\n" for row in rows)


def test_a_process_with_rejects_does_not_change_the_settings_of_others(encode, corpus):
    """A block without bad rows has the same bytes with and without --rejects."""
    assert encode(corpus, "-o", "one/").code == 0
    assert encode(corpus, "-o", "two/", "--shard", "1/2").code == 0
    settings = Path("two/run.json").read_bytes()
    assert encode(corpus, "-o", "two/", "--shard", "2/2", "--rejects", "/dev/null").code == 0
    sorted(Path("two").glob("0*"))[1].unlink()  # a block of the first shard
    resumed = encode(corpus, "-o", "two/", "--shard", "1/2", "--resume")

    assert (resumed.code, resumed.err) == (0, "")
    assert Path("two/run.json").read_bytes() == settings
    assert contents(Path("one")) == contents(Path("two"))


@pytest.mark.parametrize("first_has_rejects", [True, False])
def test_a_block_with_skipped_rows_is_refused_without_rejects(encode, sentkit, first_has_rejects):
    """Other blocks of the folder do not need --rejects."""
    good = b'{"text":"the cat"}'
    Path("in.jsonl").write_bytes(rows_of_blocks(good, b'{"text":7}', good, good))
    shards = {"1/2": ("--rejects", "/dev/null"), "2/2": ()}
    for shard in sorted(shards, reverse=not first_has_rejects):
        assert encode("in.jsonl", "-o", "a/", "--shard", shard, *shards[shard]).code == 0
    resume = ("in.jsonl", "-o", "a/", "--resume")
    other_shard = encode(*resume, "--shard", "2/2")
    refused = encode(*resume)
    resumed = encode(*resume, "--rejects", "/dev/null")

    assert (other_shard.code, other_shard.err) == (0, "")
    block = "a/00000-000000000200.safetensors"
    problem = f"sentkit encode: {block}: an earlier command with --rejects skipped its bad rows: 1"
    assert (refused.code, refused.told) == (65, [problem, "  add --rejects FILE"])
    assert (resumed.code, len(sentkit("cat", "a").rows)) == (0, 3)


def test_rejects_in_the_settings_of_an_older_folder_are_ignored(encode, corpus, folder):
    run = folder / "run.json"
    settings = json.loads(run.read_bytes())
    encode(corpus, "-o", "fresh/")
    for value in ("skip", "fail"):
        run.write_text(json.dumps({**settings, "on_error": value}))
        for flags in ([], ["--rejects", "/dev/null"]):
            assert encode(corpus, "-o", "whole/", "--resume", *flags).code == 0
        assert json.loads(run.read_bytes())["on_error"] == value
        assert encode(corpus, "-o", f"{value}/", "--reuse", "whole").code == 0
        assert contents(Path(value)) == contents(Path("fresh"))


UNKNOWN = "no Slurm array, srun, mpirun or torchrun"
GAPS = "the indices of the Slurm array have gaps"
TASK = {"TASK_COUNT": "4", "TASK_MIN": "3", "TASK_MAX": "9", "TASK_STEP": "2"}
ARRAY = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"} | {
    f"SLURM_ARRAY_{name}": n for name, n in TASK.items()
}


def srun(task, tasks):
    return {"SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_PROCID": str(task)}


def open_mpi(rank, size, local):
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
    }


def ranks(rank, world, *, nodes=1, local=None):
    """The variables of torchrun."""
    numbers = {"RANK": rank, "WORLD_SIZE": world, "GROUP_WORLD_SIZE": nodes}
    numbers["LOCAL_RANK"] = rank if local is None else local
    return {name: str(number) for name, number in numbers.items()}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "3"}, Shard(1, 4)),
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "9"}, Shard(4, 4)),
        (
            ARRAY | {"SLURM_ARRAY_TASK_ID": "5", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
            Shard(4, 8),
        ),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, Shard(6, 8, 1)),
        ({"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}, Shard(3, 3, 0)),
        # torchrun in a task of an array; in one task of srun; as a node of one world in each of two
        # tasks; with a world of its own in each
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "5"} | ranks(1, 4), Shard(6, 16, 1)),
        (srun(0, 1) | ranks(1, 4), Shard(2, 4, 1)),
        (srun(1, 2) | ranks(5, 8, nodes=2, local=1), Shard(6, 8, 1)),
        (srun(1, 2) | ranks(1, 4), Shard(6, 8, 1)),
        # RANK=$SLURM_PROCID
        (srun(5, 8) | {"RANK": "5", "WORLD_SIZE": "8"}, Shard(6, 8)),
        # mpirun, whose daemons are two tasks of srun with four ranks each; in a task of an array;
        # and MPICH
        (srun(1, 2) | {"SLURM_LOCALID": "0"} | open_mpi(6, 8, 2), Shard(7, 8, 2)),
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "5"} | open_mpi(1, 4, 1), Shard(6, 16, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}, Shard(3, 3, 0)),
        # PMI of Cray MPICH; of srun --mpi=pmi2; and variables of an mpirun around srun
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_LOCAL_RANK": "1"}, Shard(3, 3, 1)),
        (srun(5, 8) | {"SLURM_LOCALID": "1", "PMI_RANK": "5", "PMI_SIZE": "8"}, Shard(6, 8, 1)),
        (srun(1, 2) | {"SLURM_LOCALID": "0", "PMI_RANK": "6", "PMI_SIZE": "8"}, Shard(7, 8, 0)),
        (srun(5, 8) | {"SLURM_LOCALID": "1"} | open_mpi(0, 1, 0), Shard(6, 8, 1)),
        # RANK=$OMPI_COMM_WORLD_RANK
        (open_mpi(6, 8, 2) | {"RANK": "6", "WORLD_SIZE": "8"}, Shard(7, 8)),
        ({}, UNKNOWN),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, UNKNOWN),  # a batch script, which runs once
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "4"}, GAPS),
        # --array=3,5,7,11
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "11"}, GAPS),
        ({"RANK": "x", "WORLD_SIZE": "3"}, 'RANK is "x", expected a number'),
    ],
)
def test_auto_reads_the_variables_of_the_launchers(environment, expected):
    if isinstance(expected, Shard):
        assert parse_shard("auto", environment) == expected
    else:
        with pytest.raises(UsageError, match=f"^--shard auto: {expected}$"):
            parse_shard("auto", environment)


def test_shard_0_is_the_last_shard():
    """So an array of jobs can start at 0, as the manual says."""
    first, last = parse_shard("0/3"), parse_shard("3/3")

    assert [first.has(block) for block in range(7)] == [last.has(block) for block in range(7)]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_process_of_torchrun_tells_the_error_of_its_shard(encode, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = [b'{"text":"the"}'.ljust(199) + b"\n", b'{"text":7}'.ljust(199) + b"\n"]
    Path("in.jsonl").write_bytes(b"".join(rows if rank == "0" else reversed(rows)))
    result = encode("in.jsonl", "-o", "a/", "--shard", "auto")

    assert result.code == 65
    assert '"text" is a number, expected a string' in result.err


def test_the_shards_of_any_number_have_each_block_once():
    for count, first in itertools.product(range(1, 10), (0, 1)):
        shards = [Shard(number, count) for number in range(first, first + count)]
        assert all(sum(shard.has(index) for shard in shards) == 1 for index in range(30))


WINDOWS = ("--max-length", 2, "--window", "2:1", "--on-truncate")


@pytest.mark.parametrize(
    "flags",
    [
        *(("--store", kind) for kind in ("float16", "int8", "binary")),
        *((*WINDOWS, form) for form in ("window", "chunks")),
    ],
)
def test_the_joined_bytes_do_not_depend_on_shards(sentkit, encode, corpus, joined, flags):
    """Nor do the results of commands, although blocks of int8 have their own scales."""
    encode(corpus, "-o", "one/", *flags)
    encode(corpus, "-o", "two/", *flags, "--shard", "2/3")
    blocks = sorted(Path("two").glob("0*"))
    blocks[0].unlink()  # as if this block had been killed
    for shard in ("1/3", "3/3", "2/3"):
        assert encode(corpus, "-o", "two/", *flags, "--shard", shard, "--resume").code == 0

    one = contents(Path("one"))
    two = contents(Path("two"))
    assert one | {"run.json": b""} == two | {"run.json": b""}
    assert joined("one") == joined("two")
    for command in (
        "search --queries PATH --corpus PATH --top 3",
        "cluster PATH -k 2",
        "score PATH --top 3",
    ):
        file, folder = (
            sentkit(*command.replace("PATH", path).split())
            for path in ("joined.safetensors", "one")
        )
        assert (file.code, folder.code, file.out) == (0, 0, folder.out)
    for name in ("one", "two"):
        result = sentkit("cat", name, "-o", f"{name}.safetensors", *flags[: 2 * (len(flags) == 2)])
        assert (result.code, result.err) == (0, "")
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()
    # The texts have 2, 3 (without "a"), 3, 1 and 5 words; with "a", which is unknown, the second
    # has 4.
    rows = 8 * (1 + 3 + 2 + 1 + 4) if "chunks" in flags else 40
    assert (
        sentkit("check", "two", "--deep").rows[0]["rows"] == len(sentkit("cat", "two").rows) == rows
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_processes_use_the_precision_of_the_first_one(
    sentkit, corpus, tiny, monkeypatch, dtype
):
    """On another machine, another precision is faster."""
    command = ["encode", corpus, "-m", tiny, "-q", "--block-bytes", "200", "-o"]

    def on_machine(has_fast_bf16):
        monkeypatch.setattr(device, "has_fast_bf16", lambda device: has_fast_bf16)

    first_has_fast_bf16 = dtype == torch.bfloat16
    monkeypatch.delenv("SENTKIT_PRECISION", raising=False)
    on_machine(first_has_fast_bf16)
    assert sentkit(*command, "one/").code == 0
    assert sentkit(*command, "two/", "--shard", "1/2").code == 0
    on_machine(not first_has_fast_bf16)
    assert sentkit(*command, "two/", "--shard", "2/2").code == 0

    one = contents(Path("one"))
    two = contents(Path("two"))
    assert len(one) > 3
    assert one == two
    recorded = json.loads(one["run.json"])["encoder"]
    assert recorded["precision"] == ("bf16" if first_has_fast_bf16 else "fp32")


def test_messages_change_no_bytes_and_no_settings(encode, corpus, folder):
    result = encode(corpus, "-v", "-o", "told/")

    assert result.code == 0
    assert contents(Path("told")) == contents(folder)
    assert encode(corpus, "-v", "-o", "whole/", "--resume").code == 0


def test_the_kind_of_products_of_older_folders_is_no_difference(encode, corpus, folder):
    """It changed only the last bits of vectors, as another number of threads can."""
    run = folder / "run.json"
    settings = json.loads(run.read_bytes())
    settings["encoder"]["products"] = "plain"
    run.write_text(json.dumps(settings))

    assert encode(corpus, "-o", f"{folder}/", "--resume").code == 0


def as_version_2(folder, name, **changes):
    """The folder as versions before 3 wrote it: a digest of rows is that of their lines, without a
    header.
    """
    run = folder / "run.json"
    settings = json.loads(run.read_bytes())
    run.write_text(json.dumps({**settings, "version": 2, "verbose": False, **changes}))
    lines = Path(name).read_bytes().splitlines(keepends=True)[1:]
    for block in folder.glob("0*"):
        file = VectorFile(str(block))
        record = json.loads(file.header.metadata["block"])
        rows = lines[record["start"] : record["stop"]]
        digest = hashlib.sha256(b"".join(line + b"\n" for line in rows)).hexdigest()
        copy_block(file, str(block), {**record, "source": digest})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.csv.gz"])
def test_rows_of_another_table_are_not_kept(encode, sentkit, name, version):
    """The lines after the header are equal. A folder of an older version stays readable."""
    mark = "," if "csv" in name else "\t"
    pack = gzip.compress if name.endswith("gz") else bytes
    for header, other in (("text,note", "note,text"), ("note,text", "note,title")):
        table = f"{header}\nthe,cat\ndog,runs\n".replace(",", mark).encode()
        changed = f"{other}\nthe,cat\ndog,runs\n".replace(",", mark).encode()
        field = ["--field", "text=title"] if "title" in other else []
        Path(name).write_bytes(pack(table))
        assert encode(name, "-o", "old/").code == 0
        if version == 2:
            Path("plain.csv").write_bytes(table)
            as_version_2(Path("old"), "plain.csv")
        rows = sentkit("cat", "old").rows
        assert (len(rows), sentkit("check", "old", "--deep").code) == (2, 0)
        assert encode(name, "-o", "old/", "--resume").code == 0
        Path(name).write_bytes(pack(changed))
        assert encode(name, *field, "-o", "fresh/").code == 0
        assert encode(name, *field, "-o", "new/", "--reuse", "old").code == 0
        assert sentkit("cat", "new").out == sentkit("cat", "fresh").out
        for path in ("old", "new", "fresh"):
            shutil.rmtree(path)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (3, "its rows 1 to 2 are not those of the block 00000-000000000000.safetensors"),
        (2, "an older sentkit did not record the header of this input"),
    ],
)
def test_a_pipe_with_another_header_is_refused(encode, shell, version, problem):
    os.mkfifo("in.csv")
    Path("plain.csv").write_text("text,note\nthe,cat\ndog,runs\n")
    command = "sentkit encode in.csv -m words.txt -q --block-bytes 200 -o old/"
    assert shell(f"cat plain.csv > in.csv & {command}").code == 0
    if version == 2:
        as_version_2(Path("old"), "plain.csv")
    result = shell(f"sed 1s/.*/note,text/ plain.csv > in.csv & {command} --resume")

    assert (result.code, problem in result.err) == (65, True)


def test_settings_of_an_older_version(encode, sentkit, corpus, folder):
    """-v added fields to the rows of an older folder."""
    encode(corpus, "--on-truncate", "mark", "-o", "marked/")
    for path, verbose in (("whole/run.json", False), ("marked/run.json", True)):
        settings = json.loads(Path(path).read_bytes())
        settings |= {"version": 2, "verbose": verbose, "on_truncate": "warn"}
        Path(path).write_text(json.dumps(settings))
    blocks = sorted(Path("marked").glob("0*"))
    blocks[2].unlink()
    other = encode(corpus, "-v", "-o", "marked/", "--resume")
    same = encode(corpus, "--on-truncate", "mark", "-o", "marked/", "--resume")

    problem = '"on_truncate" is "mark", this command has "warn"'
    assert (other.code, problem in other.err) == (65, True)
    assert same.code == encode(corpus, "-o", "whole/", "--resume").code == 0
    for path in ("whole", "marked"):
        assert sentkit("check", path, "--deep").code == 0
    assert sentkit("cat", "marked").rows[0]["n_tokens"] == 2
