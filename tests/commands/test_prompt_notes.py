"""The note about vector files with different prompts that are compared as one side."""

import pytest

FILES = {"a": ("",), "b": ("q: ",), "c": ("",), "signs": ("", "--store", "binary")}
COMMANDS = (
    "score --top 1 a.safetensors b.safetensors",
    "cluster -k 1 a.safetensors b.safetensors",
    "duplicates --threshold 0.9 a.safetensors --against b.safetensors",
    "diff a.safetensors b.safetensors",
    "search --queries b.safetensors --corpus signs.safetensors --rescore b.safetensors",
)


@pytest.fixture
def encoded(sentkit):
    for name, (prompt, *flags) in FILES.items():
        output = ("-o", f"{name}.safetensors", *flags)
        sentkit("encode", "-m", "static", "--prompt", prompt, *output, stdin="a cat\na dog\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_files_of_one_side_with_other_prompts_are_noted_once(sentkit, encoded, command):
    """Not if the prompts are equal, and not of queries and their corpus."""
    noted = sentkit(*command.split())
    silent = sentkit(*command.replace("b.safe", "c.safe").split())

    first = "signs" if command.startswith("search") else "a"
    note = f"{first}.safetensors and b.safetensors were encoded with different prompts"
    assert (noted.code, silent.code) == (0, 0), noted.err + silent.err
    assert [line for line in noted.told if "prompts" in line] == [
        f'sentkit {command.split()[0]}: warning: {note}: "" and "q: "'
    ]
    assert "prompts" not in silent.err


def test_queries_and_their_corpus_may_have_other_prompts(sentkit, encoded):
    done = sentkit("search", "--queries", "b.safetensors", "--corpus", "a.safetensors")

    assert (done.code, done.err) == (0, "")


def test_inspect_shows_the_prompt(sentkit, encoded, on_terminal):
    [record] = sentkit("inspect", "b.safetensors").rows

    assert record["spec"]["prompt"] == "q: "
    assert any(
        line.split() == ["spec.prompt", "q:"] for line in on_terminal("inspect", "b.safetensors")
    )
