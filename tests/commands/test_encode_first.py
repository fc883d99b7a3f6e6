"""Rows without vectors, or of another space: the advice is a command line that works."""

import json
import shlex
import shutil

import pytest

from support import NANO, PAIRS, in_jsonl

NOTES = "a dog\na cat\nthe sea\nships sail\n"
TITLES = [{"title": "a dog", "label": "x"}, {"title": "a cat", "label": "y"}] * 30


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder in which `files` keeps what it has made once."""
    return tmp_path_factory.mktemp("prepared") / "files"


@pytest.fixture
def files(sentkit, tmp_path, tiny, other, prepared):
    """Texts, vectors of two models, and rows whose texts have another name."""
    if prepared.exists():
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
        return
    (tmp_path / "notes.txt").write_text(NOTES)
    (tmp_path / "more.txt").write_text(NOTES)
    (tmp_path / "titles.jsonl").write_text(in_jsonl(*TITLES))
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*PAIRS))
    of_tiny = ("-m", tiny, "--readout", "cls", "--max-length", 8, "--dim", 12, "--normalize", "-q")
    for output in ("tiny.safetensors", "tiny/", "tiny.jsonl"):
        assert sentkit("encode", "notes.txt", *of_tiny, "-o", output).code == 0
    windows = ("--max-length", 4, "--on-truncate", "window", "--window", "4:1")
    in_windows = ("notes.txt", "-m", tiny, *windows, "-q", "-o", "windows.safetensors")
    assert sentkit("encode", *in_windows).code == 0
    assert sentkit("encode", "notes.txt", "-m", other, "-q", "-o", "other.jsonl").code == 0
    assert sentkit("encode", "notes.txt", "-m", "nano", "-q", "-o", "nano.jsonl").code == 0
    assert sentkit("encode", "notes.txt", "-m", "static", "-q", "-o", "static.jsonl").code == 0
    shutil.copytree(tmp_path, prepared)


@pytest.fixture
def run_line(sentkit):
    """Run `sentkit ... | sentkit ... && sentkit ...`; returns the last command."""

    def run(line, stdin):
        for commands in line.split(" && "):
            piped = stdin
            for command in commands.split(" | "):
                words = shlex.split(command)
                if words == ["..."]:
                    continue
                assert words[0] == "sentkit"
                result = sentkit(*words[1:], stdin=piped)
                assert result.code == 0, result.err
                piped = result.out
        return result

    return run


WITHOUT = {  # command lines with texts in place of vectors -> the advice
    "duplicates notes.txt --threshold "
    "0.9": "encode notes.txt | sentkit duplicates - --threshold 0.9",
    "cluster titles.jsonl -k 2 --field text=title --describe": (
        "encode titles.jsonl --field text=title | sentkit cluster - -k 2 --field text=title "
        "--describe"
    ),
    "cluster titles.jsonl -k 2": "encode titles.jsonl --field text=title | sentkit cluster - -k 2",
    "cluster notes.txt more.txt -k 2": (
        "encode notes.txt -o notes.safetensors && sentkit encode more.txt -o more.safetensors && "
        "sentkit cluster notes.safetensors more.safetensors -k 2"
    ),
    "probe titles.jsonl --label label --folds 3": (
        "encode titles.jsonl --field text=title | sentkit probe - --label label --folds 3"
    ),
    "score pairs.jsonl --gold score": "encode pairs.jsonl | sentkit score - --gold score",
    "search --queries notes.txt --corpus tiny.safetensors": (
        "encode notes.txt -m TINY --readout cls --max-length 8 --dim 12 --normalize | "
        "sentkit search --queries - --corpus tiny.safetensors"
    ),
    "search --queries=notes.txt --corpus=tiny": (
        "encode notes.txt -m TINY --readout cls --max-length 8 --dim 12 --normalize | "
        "sentkit search --queries=- --corpus=tiny"
    ),
    "search --queries titles.jsonl --field text=title --corpus tiny.safetensors": (
        "encode titles.jsonl -m TINY --readout cls --max-length 8 --dim 12 --normalize "
        "--field text=title | sentkit search --queries - --field text=title "
        "--corpus tiny.safetensors"
    ),
    "search --queries notes.txt --corpus windows.safetensors": (
        "encode notes.txt -m TINY --readout mean --max-length 4 --on-truncate window "
        "--window 4:1 | sentkit search --queries - --corpus windows.safetensors"
    ),
    "duplicates notes.txt --against tiny.safetensors --threshold 0.5 -o far.jsonl": (
        "encode notes.txt -m TINY --readout cls --max-length 8 --dim 12 --normalize | "
        "sentkit duplicates - --against tiny.safetensors --threshold 0.5 -o far.jsonl"
    ),
    "search --queries notes.txt --corpus more.txt": (
        "encode more.txt -o more.safetensors && sentkit encode notes.txt -o notes.safetensors && "
        "sentkit search --queries notes.safetensors --corpus more.safetensors"
    ),
    "inspect notes.txt": "encode notes.txt | sentkit inspect -",
    "duplicates --threshold 0.9": "... | sentkit encode | sentkit duplicates --threshold 0.9",
    "duplicates --threshold 0.9 -": "... | sentkit encode | sentkit duplicates --threshold 0.9 -",
}


@pytest.mark.parametrize("command", WITHOUT, ids=str)
def test_the_advice_for_rows_without_vectors_works(sentkit, run_line, files, tiny, command):
    expected = WITHOUT[command].replace("TINY", str(tiny))
    if not expected.startswith("..."):
        expected = f"sentkit {expected}"
    result = sentkit(*shlex.split(command), stdin=NOTES)
    start = "  encode the texts first: "

    assert (result.code, result.told[1]) == (65, start + expected)
    assert run_line(expected, NOTES).code == 0


OTHERS = {  # command lines with vectors of another space -> the advice
    "search --queries other.jsonl --corpus tiny.safetensors": (
        "encode other.jsonl -m TINY --readout cls --max-length 8 --dim 12 --normalize --replace | "
        "sentkit search --queries - --corpus tiny.safetensors"
    ),
    "search --queries static.jsonl --corpus nano.jsonl": (
        "encode static.jsonl -m nano --readout mean --replace | "
        "sentkit search --queries - --corpus nano.jsonl"
    ),
    "cluster nano.jsonl static.jsonl -k 2": (
        "encode static.jsonl -m nano --readout mean --replace | sentkit cluster nano.jsonl - -k 2"
    ),
}


@pytest.mark.parametrize("command", OTHERS, ids=str)
def test_the_advice_for_vectors_of_another_space_works(sentkit, run_line, files, tiny, command):
    expected = f"sentkit {OTHERS[command]}".replace("TINY", str(tiny))
    result = sentkit(*shlex.split(command))

    assert (result.code, result.told[1]) == (65, f"  use one model: {expected}")
    assert run_line(expected, "").code == 0


def test_the_advice_does_not_overwrite_a_vector_file(sentkit, run_line, files):
    sentkit("cat", "static.jsonl", "-o", "static.safetensors")
    result = sentkit("cluster", "nano.jsonl", *["static.safetensors"] * 2, "-k", 2)
    new_name = "static.new.safetensors"
    expected = f"sentkit encode static.safetensors -m nano --readout mean -o {new_name}"
    expected += f" && sentkit cluster nano.jsonl {new_name} {new_name} -k 2"

    assert (result.code, result.told[1]) == (65, f"  use one model: {expected}")
    assert run_line(expected, "").code == 0


def test_centroids_of_another_space_name_their_model(sentkit, run_line, files, tiny):
    sentkit("cluster", "tiny.safetensors", "-k", 2, "--centroids", "c.jsonl")
    result = sentkit("cluster", "nano.jsonl", "--from-centroids", "c.jsonl")

    assert result.code == 65
    assert result.told[1].startswith(
        "  use one model: sentkit encode nano.jsonl -m tiny --readout cls --dim 12"
    )


def test_centroids_without_the_normalization_of_the_rows(sentkit, files):
    sentkit("cluster", "nano.jsonl", "-k", 2, "--centroids", "c.jsonl")
    result = sentkit("cluster", "nano.jsonl", "--from-centroids", "c.jsonl", "--normalize")

    advice = "  leave out --normalize, which the centroids do not have"
    assert (result.code, result.told[1]) == (65, advice)


def test_the_advice_has_different_outputs_for_files_of_one_name(sentkit, run_line, files, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pairs.jsonl").write_bytes((tmp_path / "pairs.jsonl").read_bytes())
    line = ("score", "two/pairs.jsonl", "--gold", "score", "--baseline", "one/pairs.jsonl")
    result = sentkit(*line)
    _, _, advice = result.told[1].partition("encode the texts first: ")

    last = "sentkit score pairs-2.safetensors --gold score --baseline pairs.safetensors"
    assert advice.endswith(last)
    assert run_line(advice, "").code == 0


def test_a_text_of_another_model_names_that_of_the_corpus(sentkit, files, tiny):
    result = sentkit("search", "x", "--corpus", "tiny.safetensors", "-m", "static", "-q")

    advice = f"  leave out -m, or name the model of tiny.safetensors: -m {tiny}"
    assert (result.code, result.told[1]) == (65, advice)


def test_rows_without_the_name_of_a_space_have_no_known_model(sentkit, tmp_path, files):
    (tmp_path / "bare.jsonl").write_text(in_jsonl({"embedding": [1.0] * 12}))
    result = sentkit("search", "--queries", "tiny.jsonl", "--corpus", "bare.jsonl")

    assert (result.code, "rows without _emb have no known model" in result.err) == (65, True)


@pytest.mark.parametrize(
    ("command", "field", "advice"),
    [
        ("encode titles.jsonl --field text=titel", "titel", "--field text=title?"),
        (
            "duplicates titles.jsonl --field text=titel --threshold 0.9",
            "titel",
            "--field text=title?",
        ),
        ("score tiny.jsonl --field embedding=embeding", "embeding", "leave out --field embedding="),
        ("probe tiny.jsonl --label txt --folds 3", "txt", '"text"?'),
        ("augment titles.jsonl --op delete --field text=titel", "titel", "--field text=title?"),
        ("search dog titles.jsonl --field text=titel", "titel", "--field text=title?"),
        (
            "train simcse titles.jsonl -m TINY -o m --field text=titel",
            "titel",
            "--field text=title?",
        ),
        ("encode titles.jsonl --field text=xyz", "xyz", 'this row has "title", "label"'),
    ],
)
def test_a_missing_field_is_named_with_a_similar_one(sentkit, files, tiny, command, field, advice):
    result = sentkit(*(str(tiny) if word == "TINY" else word for word in command.split()))

    assert result.code == 65
    problem, cure = result.told[-2:]
    assert f'"{field}"' in problem
    assert advice in cure
    assert "this row has" in result.err


@pytest.mark.usefixtures("files")
def test_a_transform_on_the_line_has_no_texts(sentkit, run_line):
    """It is neither rows nor a vector file."""
    sentkit("whiten", "fit", "nano.jsonl", "--kind", "center", "-o", "T.safetensors", "-q")
    result = sentkit("whiten", "apply", "-t", "T.safetensors", "notes.txt")
    expected = "sentkit encode notes.txt | sentkit whiten apply -t T.safetensors -"

    assert (result.code, result.told) == (
        65,
        [
            "sentkit whiten apply: notes.txt:1: this row has no vector",
            f"  encode the texts first: {expected}",
        ],
    )
    assert run_line(expected, "").code == 0


def test_the_encoding_command_of_a_file_without_a_prompt_turns_off_that_of_the_model(
    sentkit, files, run_line, tmp_path
):
    model = tmp_path / "prompting"
    shutil.copytree(NANO, model)
    prompts = {"prompts": {"note": "note: "}, "default_prompt_name": "note"}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (model / "sentkit.json").unlink()  # it would have priority
    plain = ("--prompt", "", "-m", model, "-q", "-o", "plain.safetensors")
    assert sentkit("encode", "notes.txt", *plain).code == 0
    refused = sentkit(
        "duplicates", "more.txt", "--threshold", 0.99, "--against", "plain.safetensors"
    )
    [advice] = [line for line in refused.told if "encode the texts first: " in line]
    line = advice.partition("encode the texts first: ")[2]

    assert f"-m {model} --readout mean --prompt '' " in line
    assert [pair["row_b"] for pair in run_line(line, b"").rows] == [1, 2, 3, 4]


def test_the_encoding_command_has_the_recorded_prompt(sentkit, files, run_line):
    """Texts that are encoded without it would not be equal to those of the file."""
    prompt = ("--prompt", "note: ", "-m", "nano", "-q", "-o", "prompted.safetensors")
    assert sentkit("encode", "notes.txt", *prompt).code == 0
    refused = sentkit(
        "duplicates", "more.txt", "--threshold", 0.99, "--against", "prompted.safetensors"
    )
    [advice] = [line for line in refused.told if "encode the texts first: " in line]
    found = run_line(advice.partition("encode the texts first: ")[2], b"")

    assert [pair["row_b"] for pair in found.rows] == [1, 2, 3, 4]
