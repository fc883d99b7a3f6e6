"""Shell completion: the offered words, and three real shells that use them."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from unittest.mock import patch

import pytest
from typer._completion_classes import FishComplete

from sentkit import completion
from sentkit.cli import every_command, groups, program
from sentkit.flags.help_texts import parameters_of
from sentkit.formats.checkpoints.readout import NAMED
from sentkit.training.catalogue import METHODS, names_of
from support import with_program

LIMIT = 60  # seconds until a test of a silent shell fails


def offered(*words):
    """The words that are offered for the last one."""
    shell = FishComplete(program(), {}, "sentkit", completion.VARIABLE)
    with patch.dict(os.environ, COMP_WORDS=" ".join(["sentkit", *words])):
        return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_commands_are_offered():
    first = {name.split()[0] for name in every_command()} | groups().keys()

    assert set(offered("")) == first
    assert offered("en") == ["encode"]
    assert offered("whiten", "") == ["fit", "apply"]


@pytest.mark.parametrize("name", every_command())
def test_every_flag_of_a_command_is_offered(name):
    """In both spellings, as the parser has them; -q and -v, which every command has, too."""
    command = program()
    for word in name.split():
        command = command.commands[word]
    names = set()
    for parameter in parameters_of(command):
        names |= {*parameter.opts, *parameter.secondary_opts}
    flags = {name for name in names if name.startswith("-")}

    assert set(offered(*name.split(), "-")) == flags | {"-h", "--help"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("encode", "--on-truncate", "e"), ["error"]),
        (("encode", "--readout", ""), list(NAMED)),
        (
            ("encode", "x.txt", "--readout", "mean-"),
            [name for name in NAMED if name.startswith("mean-")],
        ),
        (("whiten", "fit", "--kind", "w"), ["whitening"]),
        (("cat", "--from", "pa"), ["paragraphs", "parquet"]),
        (("train", ""), list(METHODS)),
        (("train", "-q", "sim"), ["simcse", "simcse-sup"]),
        (("train", "simcse", "--preset", "bert-b"), ["bert-base"]),
        (("train", "simcse", "--set", "temp"), ["temperature="]),
        (("train", "mlm", "-q", "--set", "mask_"), ["mask_rate=", "mask_share="]),
        (("cluster", "x.jsonl", "--set", ""), ["restarts=", "sample=", "linkage=", "min_size="]),
        (("export", "--template", "sn"), ["sncse", "sncse-1"]),
        (("encode", "--quiet", "--fo"), ["--force"]),
        (("--show-completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_values_are_offered(words, expected):
    assert offered(*words) == expected


def test_nothing_else_is_offered():
    """The shell then completes names of files."""
    lines = (
        "encode ",
        "encode -o ",
        "encode -m n",
        "encode -- --re",
        "train simcse ",
        "train --set ",
    )
    lines += (
        "train simcse --preset none",
        "nothing --re",
        "encode --nothing x",
        "encode --nothing=x",
    )

    words_by_line = {line: offered(*line.split(" ")) for line in lines}

    assert {line: words for line, words in words_by_line.items() if words} == {}


def test_names_without_torch_are_those_of_the_classes():
    for name, listing in METHODS.items():
        kind = listing.load()
        settings, presets = names_of(name)

        assert set(settings) == {field.name for field in fields(kind.Settings)}, name
        assert presets == [*kind.presets], name


def test_completion_imports_no_model_and_no_numpy(monkeypatch):
    code = (
        "import sys\nfrom sentkit import cli\ncli.exit_immediately = sys.exit\ntry:\n    "
        "cli.main()\nfinally:\n"
        "    print(*{'numpy', 'torch', 'transformers', 'tokenizers'} & sys.modules.keys(), "
        "file=sys.stderr)"
    )
    for line, word in (
        ("encode --readout ", "cls"),
        ("train ", "simcse"),
        ("train simcse --set ", "temperature="),
    ):
        monkeypatch.setenv(completion.VARIABLE, "complete_fish")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"sentkit {line}")
        completed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )

        assert word in [line.partition("\t")[0].strip() for line in completed.stdout.splitlines()]
        assert completed.stderr == "\n"


@pytest.fixture
def home(tmp_path, monkeypatch, forked_program):
    """An empty home, and the program on PATH."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", with_program(tmp_path, forked_program)["PATH"])
    return tmp_path


def on_screen(command, keys, expected):
    """Whether an interactive shell, ready for input, shows this after these keys."""
    terminal, screen = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "LINES": "50"}
    shell = subprocess.Popen(
        command, stdin=screen, stdout=screen, stderr=screen, start_new_session=True, env=environment
    )
    os.close(screen)
    shown = ""
    try:
        for awaited, then in (("READY>", keys), (expected, "")):
            while awaited not in shown:
                if not select.select([terminal], [], [], LIMIT)[0]:
                    pytest.fail(f"{awaited!r} is not shown: {shown!r}")
                shown += os.read(terminal, 4096).decode()
            os.write(terminal, then.encode())
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"there is no {shell} here")


LINES = [
    ("sentkit enc", "sentkit encode"),
    ("sentkit encode --readout mean-e", "mean-emb-last"),
    ("sentkit encode titl", "titles.txt"),
]


def install(shell):
    completed = subprocess.run(
        ["sentkit", "--install-completion", shell], check=True, capture_output=True
    )
    return completed.stdout.decode()


@pytest.mark.parametrize(("line", "expected"), LINES)
@pytest.mark.parametrize(
    ("shell", "options", "setting"),
    [
        pytest.param("bash", ["--noprofile", "-i"], "", marks=needs("bash")),
        pytest.param("zsh", ["-i"], "; unsetopt zle_bracketed_paste", marks=needs("zsh")),
    ],
)
def test_a_shell_completes(home, shell, options, setting, line, expected):
    (home / "titles.txt").touch()
    message = install(shell)
    rc = home / f".{shell}rc"
    rc.write_text(f"cd {shlex.quote(str(home))}; PS1='READY> '{setting}\n{rc.read_text()}")
    on_screen([shell, *options], line + "\t", expected)

    assert message.startswith("written: ")


@needs("fish")
@pytest.mark.parametrize(("line", "expected"), LINES)
def test_fish_completes(home, line, expected):
    (home / "titles.txt").touch()
    install("fish")
    completed = subprocess.run(
        ["fish", "-c", f"complete -C {shlex.quote(line)}"],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )

    assert completed.stdout.partition("\t")[0].strip() in (expected, expected.rpartition(" ")[2])
