"""`inspect --replay`: the shell commands that made a checkpoint and its bases."""

import hashlib
import json
import shlex
import shutil

import pytest

from sentkit.formats.checkpoints.export import Command, Input
from sentkit.training.catalogue import METHODS
from sentkit.training.runs.replay import Record
from sentkit.training.settings import build, parsed
from support import PAIRS, TEXTS, in_jsonl
from web import web_server


def test_the_printed_commands_write_the_same_bytes(execute, tiny, tmp_path):
    """A chain of sbert, export and consert on a random base, with a path that needs quotes."""
    one, two, rows = tmp_path / "one", tmp_path / "two", "it's rows/pairs.jsonl"
    for folder in (one, two):
        (folder / rows).parent.mkdir(parents=True)
        (folder / rows).write_text(in_jsonl(*({"left": row["text_a"], **row} for row in PAIRS)))
        (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
        shutil.copytree(tiny, folder / "base")
    sbert = ["train", "sbert", rows, "--dev", rows, "--field", "text_a=left", "--set", "objective=regression"]
    quick = ["--threads", "1", "--batch", "5", "-q"]
    commands = [
        [*sbert, "--lr", "0.0123456789", "-m", "base", "-o", "a/b", *quick],
        ["export", "-m", "a/b", "--readout", "cls", "--prompt", "- ", "-o", "c"],
        ["train", "consert", "texts.txt", "-m", "c", "-o", "d", "--seed", "7", *quick],
    ]
    for words in commands:
        done = execute(["sentkit", *words], one)
        assert done.returncode == 0, done.stderr
    printed = execute(["sentkit", "inspect", "d", "--replay"], one)
    script = [shlex.split(line) for line in printed.stdout.splitlines() if not line.startswith("#")]

    assert (printed.returncode, printed.stderr) == (0, "")
    assert [words[1:3] for words in script] == [["train", "sbert"], ["export", "-m"], ["train", "consert"]]
    assert {words[0] for words in script} == {"sentkit"}
    assert "# base: has no record of its command; the commands start with it" in printed.stdout
    assert any(line.startswith("# made with sentkit ") for line in printed.stdout.splitlines())
    again = execute(["sh", "-e", "-c", printed.stdout], two)
    assert again.returncode == 0, again.stderr
    for name in ("a/b", "c", "d"):
        first, second = ((folder / name / "model.safetensors").read_bytes() for folder in (one, two))
        assert first == second


@pytest.mark.parametrize("name", METHODS)
def test_settings_survive_the_command_line(name):
    """The printed settings of each preset, parsed again, are the same values."""
    kind = METHODS[name].load()
    for preset in (None, *kind.presets):
        made = build(kind.Settings, kind.presets, preset, ["lr=0.000012345678901"])
        own = {"run": {"method": name, "seed": 0, **{n: getattr(made, n) for n in made.__dataclass_fields__}}}
        record = Record(own, Command(["train", name], [Input("--dev", "x", "0")]), "sentkit.json")
        assert kind.Settings(**parsed(kind.Settings, record.settings(own["run"], kind.Settings))) == made


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_of_checkpoint(folder):
    lines = [f"{digest(folder / name)}  {name}\n" for name in ("config.json", "model.safetensors")]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.fixture
def made(tmp_path):
    """Write a checkpoint with a record; `inputs` are (flag, path, digest)."""

    def write(name, *inputs, words=("train", "simcse"), **own):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(name)
        made_with = {"sentkit": "0.0.1", "threads": 2, "device": "cpu", "deterministic": False, "ranks": 1}
        named = [dict(zip(("flag", "path", "sha256"), each, strict=True)) for each in inputs]
        record = {
            "command": {"words": words, "inputs": named, "flags": []},
            "run": {"method": "simcse", "seed": 3, "batch": 64, "lr": 1e-5},
            "made_with": made_with,
        }
        for key, change in own.items():
            record[key] = change if isinstance(change, str) else {**record[key], **change}
        (folder / "sentkit.json").write_text(json.dumps(record))
        return folder

    return write


@pytest.fixture
def base(made, tmp_path):
    """A folder without a record, its digest, and that of the file rows.txt."""
    folder = made("base")
    (folder / "sentkit.json").unlink()
    (tmp_path / "rows.txt").write_text("a\n")
    return digest_of_checkpoint(folder), digest(tmp_path / "rows.txt")


def test_the_version_and_the_number_of_processes(sentkit, made, base):
    inputs = ("FILE", "rows.txt", base[1]), ("-m", "base", base[0])
    made("ckpt", *inputs, made_with={"ranks": 2, "threads": 4})
    done = sentkit("inspect", "ckpt", "--replay")
    lines = done.out.decode().splitlines()

    assert (done.code, done.err) == (0, "")
    assert lines[1].startswith("# made with sentkit 0.0.1")
    assert lines[2].startswith("# here: sentkit ")
    start = "torchrun --nproc-per-node 2 -m sentkit -- train simcse rows.txt -m base --set lr=1e-05"
    assert lines[3].startswith(start)
    assert lines[3].endswith("--seed 3 --threads 4 --device cpu -o ckpt")


def test_a_recorded_hub_name_is_not_fetched(sentkit, made, base, monkeypatch):
    """A hostile record can have a digest beside a hub name."""
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    fetch = "huggingface_hub.snapshot_download"
    monkeypatch.setattr(fetch, lambda *_, **flags: asked.append(flags) or "base")
    made("ckpt", ("-m", "somebody/model", base[0]))
    done = sentkit("inspect", "ckpt", "--replay")

    assert done.code == 1
    assert asked
    assert all(flags["local_files_only"] for flags in asked)


def test_a_recorded_url_is_not_read(sentkit, made, base):
    """A hostile record can have any URL. A commit of the hub determines a file; other URLs have a remark."""
    with web_server() as web:
        files = [f"{web.address}/rows.txt", f"hf://datasets/org/name@{'a' * 40}/rows.txt"]
        made("ckpt", *(("FILE", file, base[1]) for file in files), ("-m", "base", base[0]))
        done = sentkit("inspect", "ckpt", "--replay")

    problem = f"{files[0]}: is at a URL, so it is not compared"
    assert (done.code, done.told, web.asked) == (1, [f"sentkit inspect: {problem}"], {})
    assert (
        done.out.decode().splitlines()[-1].startswith(f"sentkit train simcse {files[0]} {files[1]} -m base")
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "rows.txt").write_text("b\n"), "rows.txt: has changed since then"),
        (lambda folder: (folder / "rows.txt").unlink(), "rows.txt: is not there any more"),
        (lambda folder: (folder / "base/model.safetensors").write_text("x"), "base: has changed since then"),
        (lambda folder: shutil.rmtree(folder / "base"), "base: is not there any more"),
    ],
)
def test_missing_and_changed_inputs_are_named(sentkit, made, base, tmp_path, change, problem):
    made("ckpt", ("FILE", "rows.txt", base[1]), ("-m", "base", base[0]))
    change(tmp_path)
    done = sentkit("inspect", "ckpt", "--replay")

    assert (done.code, done.told) == (1, [f"sentkit inspect: {problem}"])
    assert f"# {problem}" in done.out.decode().splitlines()
    assert done.out.decode().splitlines()[-1].startswith("sentkit train simcse rows.txt")


def test_a_hostile_record_cannot_add_a_command(sentkit, made, base):
    inputs = ("FILE", "rows.txt\nrm x", base[1]), ("-m", "base\nrm y", None)
    made("ckpt", *inputs, made_with={"sentkit": "\nrm z"})
    lines = sentkit("inspect", "ckpt", "--replay").out.decode()

    assert [line for line in shlex.split(lines, comments=True) if line.startswith("rm")] == []
    assert shlex.split(lines, comments=True)[:4] == ["sentkit", "train", "simcse", "rows.txt\nrm x"]


@pytest.mark.parametrize(
    ("path", "flags", "code", "problem"),
    [
        ("nano", (), 2, "--replay needs a record of the command, but nano has none"),
        ("older", (), 2, "an older version of sentkit made it"),
        ("none", (), 66, "none: no such"),
        ("rows.txt", (), 66, "rows.txt: is a file, expected a checkpoint folder"),
        ("bad", (), 65, 'bad/sentkit.json: "command" is not the record of a command'),
        ("other", (), 65, 'other/sentkit.json: "command" is not the record of a command'),
        ("ckpt", ("--above", "0", "--gold", "score"), 2, "--replay"),
        ("untrained", (), 65, '"made_with" is not a record of training'),
        ("number", (), 65, '"made_with" is not a record of training'),
        ("words", (), 65, "chunk_tokens=8,2: expected a number of tokens"),
    ],
)
def test_refusals(sentkit, made, base, tmp_path, path, flags, code, problem):
    made("ckpt", ("-m", "base", base[0]))
    made("bad", command="train simcse")
    made("other", words=("encode",))
    made("untrained", made_with={"ranks": "two"})
    made("number", made_with={"chunk_tokens": 8}, run={"chunk_tokens": "auto"})
    made("words", made_with={"chunk_tokens": "8,2"}, run={"chunk_tokens": "auto"})
    older = json.loads((made("older") / "sentkit.json").read_text())
    del older["command"]
    (tmp_path / "older/sentkit.json").write_text(json.dumps(older))
    done = sentkit("inspect", path, "--replay", *flags)

    assert done.code == code
    assert problem in done.err
