"""The command lines in a checkpoint: `inspect` prints them, and they make the same bytes again."""

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from commands.train.records import record_of
from sentkit.formats.checkpoints.command_record import Input, quoted_command
from sentkit.training.loop.state import read_sealed, write_sealed
from support import PAIRS, ROOT, TEXTS, contents, in_jsonl
from training.small import every_field

# Lines of the documents, and the words that complete them: rows, output, and fewer steps.
TITLES = "titles.txt -o made -q --epochs 1 --set warmup=0"
OF_PAIRS = "pairs.jsonl -o made -q --epochs 1 --set warmup=0"
ROWS = "rows.jsonl -o made -q --epochs 1 --batch 4"
OF_DOCUMENTS = [
    (
        "examples/README.md",
        "sentkit train simcse examples/data/titles.txt -m nano -o out/run --epochs 10 --lr 3e-4 "
        "--dev examples/data/pairs.jsonl --resume",
        "",
    ),
    (
        "examples/README.md",
        "sentkit distill-static examples/data/titles.txt -m nano --weights sif --dim 64 -o "
        "out/static",
        "",
    ),
    (
        "examples/README.md",
        "sentkit export -m nano --readout mean-last2 --prompt 'query: ' --normalize -o out/ckpt",
        "",
    ),
    ("sentkit/pages/train.txt", "sentkit train simcse titles.txt -m BASE -o ckpt --epochs 2", ""),
    (
        "sentkit/pages/train.txt",
        "sentkit train simcse titles.txt -o runs --dev pairs.jsonl --set lr=1e-5,3e-5",
        "",
    ),
    ("sentkit/pages/distill-static.txt", "sentkit distill-static -m CHECKPOINT -o static", ""),
    ("sentkit/pages/export.txt", "sentkit export -m BASE --readout mean-last2 -o ckpt", ""),
    ("sentkit/pages/export.txt", "sentkit export --prompt 'query: ' --normalize -o queries", ""),
    ("sentkit/pages/export.txt", "sentkit export -m CHECKPOINT --store float16 -o half", ""),
    ("examples/systems.jsonl", "sentkit train sbert", ROWS),
    ("examples/systems.jsonl", "sentkit train ct", TITLES),
    ("examples/systems.jsonl", "sentkit train is-bert", TITLES),
    ("examples/systems.jsonl", "sentkit train sg-bert --preset bt", OF_PAIRS),
    ("examples/systems.jsonl", "sentkit train sg-bert --set objective=opt2", TITLES),
    ("examples/systems.jsonl", "sentkit train sg-bert --set temperature=0.001", TITLES),
    ("examples/systems.jsonl", "sentkit train sg-bert --set head=none", TITLES),
    ("examples/systems.jsonl", "sentkit train consert --preset unsup-base --batch 16", TITLES),
    ("examples/systems.jsonl", "sentkit train simcse", TITLES),
    ("examples/systems.jsonl", "sentkit train simcse-sup", ROWS),
    ("examples/systems.jsonl", "sentkit train pairsupcon --preset paper", ROWS),
    ("examples/systems.jsonl", "sentkit train pairsupcon --preset id-plain", ROWS),
    ("examples/systems.jsonl", "sentkit train pairsupcon --set beta=0.5", ROWS),
    ("examples/systems.jsonl", "sentkit train pairsupcon --preset cls", ROWS),
    ("examples/systems.jsonl", "sentkit train sncse", OF_PAIRS),
]


@pytest.fixture
def folders(tmp_path, tiny):
    """Two folders with the same files, which the lines of the documents name, and a small model."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    (first / "examples/data").mkdir(parents=True)
    for name in ("titles.txt", "examples/data/titles.txt"):
        (first / name).write_text("".join(f"{text}\n" for text in TEXTS))
    for name in ("pairs.jsonl", "examples/data/pairs.jsonl"):
        (first / name).write_text(in_jsonl(*PAIRS))
    (first / "rows.jsonl").write_text(in_jsonl(*every_field(13)))
    shutil.copytree(tiny, first / "base")
    shutil.copytree(first, second)
    return first, second


def commands_of(record):
    """The commands that make a checkpoint, those of its bases first."""
    return [checkpoint["command"] for checkpoint in reversed([record, *record["bases"]])]


def repeat(execute, line, folders):
    """Run a line in the first folder and the printed commands in the second; compare the
    checkpoints.
    """
    first, second = folders
    completed = execute(["sh", "-ec", line], first)
    assert completed.returncode == 0, completed.stderr
    output = shlex.split(line)[shlex.split(line).index("-o") + 1]
    checkpoints = [
        path.parent.relative_to(first) for path in (first / output).rglob("sentkit.json")
    ]
    printed = execute(["sentkit", "inspect", f"./{checkpoints[0]}"], first)
    [command] = commands_of(json.loads(printed.stdout)["lineage"])
    assert shlex.split(command) == shlex.split(line)
    repeated = execute(["sh", "-ec", command], second)
    assert repeated.returncode == 0, repeated.stderr
    for checkpoint in checkpoints:
        assert contents(second / checkpoint) == contents(first / checkpoint)


def in_documents(document, line, more):
    """The line, which the document has, with models and rows in place of BASE and CHECKPOINT."""
    text = re.sub(r" \\\n\s+", " ", (ROOT / document).read_text())
    assert line in text or json.dumps(line) in text
    return f"{line} {more}".strip().replace("BASE", "nano").replace("CHECKPOINT", "nano")


@pytest.mark.parametrize(
    ("document", "line", "more"), OF_DOCUMENTS[:3], ids=[line for _, line, _ in OF_DOCUMENTS[:3]]
)
def test_a_printed_command_makes_the_same_bytes(execute, folders, document, line, more):
    """With a smaller model, whose vectors have 16 numbers."""
    command = in_documents(document, line, more)
    command = command.replace("-m nano", "-m base").replace("--dim 64", "--dim 8")
    repeat(execute, command, folders)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "line", "more"), OF_DOCUMENTS, ids=[line for _, line, _ in OF_DOCUMENTS]
)
def test_the_commands_of_the_documents_make_the_same_bytes(execute, folders, document, line, more):
    repeat(execute, in_documents(document, line, more), folders)


def test_the_commands_of_all_bases_make_the_same_bytes(execute, tiny, tmp_path):
    """A chain of sbert, export and consert, with a path that needs quotes."""
    one = tmp_path / "one"
    two = tmp_path / "two"
    rows = "it's rows/pairs.jsonl"
    for folder in (one, two):
        (folder / rows).parent.mkdir(parents=True)
        (folder / rows).write_text(in_jsonl(*({"first": row["text_a"], **row} for row in PAIRS)))
        (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
        shutil.copytree(tiny, folder / "base")
    sbert = ["train", "sbert", rows, "--dev", rows, "--field", "text_a=first"]
    sbert += ["--set", "objective=regression"]
    quick = ["--threads", "1", "--batch", "5", "-q"]
    typed = [
        ["sentkit", *sbert, "--lr", "0.0123456789", "-m", "base", "-o", "a/b", *quick],
        ["sentkit", "export", "-m", "a/b", "--readout", "cls", "--prompt", "- ", "-o", "c"],
        ["sentkit", "train", "consert", "texts.txt", "-m", "c", "-o", "d", "--seed", "7", *quick],
    ]
    for words in typed:
        completed = execute(words, one)
        assert completed.returncode == 0, completed.stderr
    record = json.loads(execute(["sentkit", "inspect", "d", "--json"], one).stdout)["lineage"]
    commands = commands_of(record)
    repeated = execute(["sh", "-ec", "\n".join(commands)], two)

    assert [shlex.split(command) for command in commands] == typed
    assert [base["model"] for base in record["bases"]] == ["c", "a/b"]
    assert repeated.returncode == 0, repeated.stderr
    for name in ("a/b", "c", "d"):
        assert contents(one / name) == contents(two / name)
    card = (one / "d/README.md").read_text()
    assert "\n\n" + "".join(f"    {command}\n" for command in commands) in card
    assert str(tmp_path) not in card + (one / "d/sentkit.json").read_text()


def test_a_terminal_shows_the_commands(train, sentkit, on_terminal):
    """Below the ten most important lines; with several runs, also which one of them this is."""
    train("--seed", "3,4", output="runs")
    sentkit("export", "-m", "runs/seed-4", "-o", "made")
    lines = [line.split(maxsplit=1) for line in on_terminal("inspect", "made", width=200)]

    assert lines[10][0] == "lineage.command"
    assert lines[10][1].strip() == "sentkit export -m runs/seed-4 -o made"
    assert [line[0] for line in lines[11:14]] == [
        "lineage.bases.1.model",
        "lineage.bases.1.command",
        "lineage.bases.1.this_run.seed",
    ]
    assert lines[11][1].strip() == "runs/seed-4"
    assert lines[13][1].strip() == "4"
    assert lines[14][0] == "..."


def test_one_of_several_checkpoints_of_a_command_says_which_one_it_is(train, sentkit):
    """Also in its card; an export of it is the only one of its command."""
    train("--set", "lr=1e-2,3e-2", "--seed", "0,1", output="grid")
    sentkit("export", "-m", "grid/lr=3e-2/seed-1", "-o", "made")
    card, exported = (
        Path(folder, "README.md").read_text() for folder in ("grid/lr=3e-2/seed-1", "made")
    )

    assert record_of("grid/lr=3e-2/seed-1")["this_run"] == {"lr": "3e-2", "seed": 1}
    assert "This is the one with `lr=3e-2`, `seed=1`." in card
    assert "this_run" not in record_of("made")
    assert record_of("made")["bases"][0]["this_run"] == {"lr": "3e-2", "seed": 1}
    assert "This is the one" not in exported
    assert "    sentkit export -m grid/lr=3e-2/seed-1 -o made\n" in exported


def sha256_of(content):
    return hashlib.sha256(content).hexdigest()


def test_the_inputs_have_digests(train, sentkit, tiny, texts):
    train()
    digests = {file["flag"]: file["sha256"] for file in record_of()["inputs"]}
    lines = [f"{sha256_of(path.read_bytes())}  {path.name}\n" for path in sorted(tiny.iterdir())]
    lines.append(f"{sha256_of(b'{}')}  sentkit.json\n")  # it declares nothing

    assert digests["FILE"] == sha256_of(Path(texts).read_bytes())
    assert digests["-m"] == sha256_of("".join(lines).encode())


@pytest.mark.parametrize(
    ("name", "changes", "is_another"),
    [
        ("modules.json", [], True),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, True),
        ("config_sentence_transformers.json", {"prompts": {"query": "query: "}}, True),
        ("sentence_bert_config.json", {"do_lower_case": True}, True),
        ("tokenizer_config.json", {"truncation_side": "left"}, True),
        ("special_tokens_map.json", {"eos_token": "[SEP]"}, True),
        ("sentkit.json", {"readout": "cls"}, True),
        ("sentkit.json", {"method": "simcse"}, False),
        ("README.md", "a card", False),
    ],
)
def test_the_digest_of_a_checkpoint_has_what_it_declares(
    tiny, copy_of, tmp_path, name, changes, is_another
):
    folder = copy_of(tiny, "model")
    (folder / "1_Pooling").mkdir()
    before = Input("-m", str(folder)).digest()
    path = folder / name
    declared = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(declared | changes if isinstance(changes, dict) else changes))

    assert (Input("-m", str(folder)).digest() != before) == is_another


def test_secrets_of_urls_are_hidden_and_other_words_are_as_typed():
    """A byte that is not UTF-8 becomes a character."""
    words = ["it's", "", "--set", "prompt=a b"]
    line = quoted_command(["train", "simcse", "https://user:word@host/rows.txt?token=x", *words])

    command = ["sentkit", "train", "simcse", "https://host/rows.txt?..."]
    assert shlex.split(line) == [*command, *words]
    assert quoted_command(["cat", "a\udcff"]) == "sentkit cat 'a\N{REPLACEMENT CHARACTER}'"


def test_a_resumed_run_records_the_first_command(train, stop_at):
    with stop_at(2):
        train("--save-every", 1)
    resumed = train("--save-every", 1, "--resume")
    command = record_of()["command"]
    train("--save-every", 1, output="whole")

    assert resumed.code == 0
    assert "--resume" not in command
    assert command == record_of("whole")["command"].replace("-o whole", "-o out")


def test_a_state_without_a_command_is_resumed(train, stop_at):
    """As an earlier version has written it. The checkpoint has the command that continued."""
    with stop_at(2):
        train("--save-every", 1)
    for path in Path("out.part").glob("state-*.pt"):
        state = read_sealed(path)
        del state["recorded"]
        with path.open("w+b") as file:
            write_sealed(file, state)
    resumed = train("--resume")
    train(output="whole")

    assert resumed.code == 0
    assert record_of()["command"].endswith("--resume")
    assert (
        Path("out/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    )


OBJECT = {
    "words": ["train", "simcse"],
    "inputs": [{"flag": "FILE", "path": "x", "sha256": None}],
    "flags": [],
}


@pytest.mark.parametrize(
    "changes",
    [
        {"command": OBJECT},
        {"command": OBJECT, "bases": None, "inputs": 3},
        {"command": 3, "bases": [{"command": OBJECT}, "x", None]},
        {"command": None, "bases": {"command": "rm x"}},
    ],
)
def test_a_base_with_another_record_has_no_command(train, sentkit, changes):
    """Of an earlier version, or hostile: it opens, and is not in the chain."""
    train()
    path = Path("out/sentkit.json")
    note = json.loads(path.read_text())
    path.write_text(json.dumps(note | changes))
    described = sentkit("inspect", "out", "--json")
    exported = sentkit("export", "-m", "out", "-o", "made")

    assert described.code == 0
    assert exported.code == 0, exported.err
    assert record_of("made")["bases"] == []
    assert record_of("made")["command"] == "sentkit export -m out -o made"
    assert commands_of(record_of("made")) == ["sentkit export -m out -o made"]


def test_a_hostile_command_cannot_change_a_terminal(train, on_terminal):
    train()
    path = Path("out/sentkit.json")
    note = json.loads(path.read_text())
    path.write_text(json.dumps(note | {"command": "sentkit \x1b[2J\nrm x"}))
    shown = "\n".join(on_terminal("inspect", "out", width=200))

    assert r"sentkit \x1b[2J\nrm x" in shown
