"""The scripts that train: each from rows to its table, with an encoder of two layers."""

import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from safetensors.numpy import load_file

from sentkit.training.catalogue import METHODS
from sentkit.training.recipe import check_widths
from sentkit.training.settings import build
from support import PAIRS, ROOT, TEXTS, in_jsonl, load_script, make_bert, write_rows

EXAMPLES = ROOT / "examples"
EXPECTED = "declares no readout|converged|directions|PRESET="  # warnings
FEW = "--batch 4 --epochs 1 --lr 0.01 --set max_length=64 --threads 1 -q"


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    labels = ("entailment", "contradiction", "neutral") * 3
    nli = zip(pairwise(TEXTS), labels, strict=False)
    threes = zip(*[iter(TEXTS)] * 3, strict=True)
    definitions = enumerate([*TEXTS, *(f"{text} again" for text in TEXTS)])
    (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    files = {
        "dev": PAIRS,
        "nli": ({"text_a": a, "text_b": b, "label": label} for (a, b), label in nli),
        "triplets": ({"anchor": a, "positive": b, "negative": c} for a, b, c in threes),
        "dictionary": ({"entry": f"entry {n % 6}", "definition": text} for n, text in definitions),
    }
    write_rows(folder, files)
    make_bert(folder / "small", num_hidden_layers=2)
    return folder


@pytest.fixture
def example(furnished, tmp_path, execute):
    """`example("simcse", "texts.txt", OUT="runs")` returns the lines of stdout and checks
    stderr.
    """

    def run(name, *arguments, expected="declares no readout", **variables):
        environment = {"SETTINGS": FEW, "OUT": str(tmp_path / "out"), "SEEDS": "1", **variables}
        done = execute(["sh", EXAMPLES / f"{name}.sh", *arguments], furnished, **environment)

        said = [line for line in done.stderr.splitlines() if not re.search(expected, line)]
        assert (done.returncode, said) == (0, [])
        return done.stdout.splitlines()

    return run


def tables(lines):
    """Method and seed of each run, and the encoder of each test score."""
    rows = [json.loads(line) for line in lines]
    runs = [(row["method"], row["seed"]) for row in rows if "seed" in row]
    scored = [row for row in rows if "spearman" in row]

    assert all(
        row["n"] == 8 and row["against"]["encoder"] == scored[0]["encoder"] for row in scored
    )
    return runs, [row["encoder"].partition(":")[0] for row in scored]


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("**/model.safetensors")}


def test_a_script_trains_and_prints_scores(example):
    settings = FEW + " --set head_width=8"
    lines = example("sg-bert", "texts.txt", "dev.jsonl", "dev.jsonl", "small", SETTINGS=settings)

    assert tables(lines) == ([("sg-bert", 1)], ["small/mean", "run/cls"])


def test_each_layer_and_readout_is_compared_with_the_default(example, tmp_path):
    """Of an encoder of two layers, which declares no readout, the mean of the last layer is the
    default. The vectors that another encoder left in OUT are removed.
    """
    (tmp_path / "out/sweep").mkdir(parents=True)
    (tmp_path / "out/sweep/L09-cls.safetensors").touch()
    default, *lines = map(
        json.loads, example("layers", "dev.jsonl", "small", expected="undefined|declares")
    )
    names = [
        f"L{layer:02}-{readout}.safetensors"
        for layer in range(3)
        for readout in ("cls", "max", "mean")
    ]
    difference = {line["file"]: line["against"]["spearman"]["difference"] for line in lines}

    assert default["encoder"].startswith("small/mean:")
    assert [line["file"] for line in lines] == names
    assert {line["against"]["file"] for line in lines} == {"default.safetensors"}
    assert difference["L02-mean.safetensors"] == 0
    assert difference["L02-max.safetensors"] == pytest.approx(
        lines[-2]["spearman"] - default["spearman"], abs=1e-4
    )


def test_distill_compares_student_and_teacher(example, tmp_path):
    """With the first eight principal directions of the teacher, which a second run takes from the
    first. The vectors of the texts have the precision of ENCODE.
    """

    def distill(**variables):
        lines = example(
            "distill", "texts.txt", "dev.jsonl", "dev.jsonl", "nano", "small", **variables
        )
        return tables(lines)

    first = distill(DIM="8", ENCODE="--precision bf16")
    directions = str(tmp_path / "out/svd.safetensors")
    second = distill(SVD=directions, OUT=str(tmp_path / "second"), ENCODE="--precision bf16")

    precision = json.loads((tmp_path / "out/texts/run.json").read_text())["encoder"]["precision"]
    assert precision == "bf16"
    assert first == ([("distill", 1)], ["small/mean", "nano/mean", "run/mean+dense"])
    assert second == first
    [block] = (tmp_path / "out/texts").glob("*.safetensors")
    vectors = load_file(block)["embeddings"]
    projected = load_file(tmp_path / "out/texts-8.safetensors")["embeddings"]
    projected_again = load_file(tmp_path / "second/texts-svd.safetensors")["embeddings"]
    assert (vectors.shape[1], projected.shape[1]) == (256, 8)
    assert (projected == projected_again).all()
    assert not (tmp_path / "second/svd.safetensors").exists()


def test_distill_refuses_vectors_of_other_texts_teachers_and_directions(
    furnished, tmp_path, execute
):
    """In the OUT of a finished run."""

    def distill(texts, teacher, **variables):
        command = ["sh", EXAMPLES / "distill.sh", texts, "dev.jsonl", "dev.jsonl", teacher, "small"]
        variables = {"SETTINGS": FEW, "OUT": str(tmp_path / "out"), **variables}
        return execute(command, furnished, **variables)

    (furnished / "other.txt").write_text("".join(f"{text}!\n" for text in TEXTS))
    first = distill("texts.txt", "nano", DIM="8")
    other_svd = tmp_path / "other.safetensors"
    fit = ["sentkit", "whiten", "fit", tmp_path / "out/texts", "--kind", "whitening"]
    execute([*fit, "--dim", "8", "-o", other_svd], furnished)
    other_texts = distill("other.txt", "nano", DIM="8")
    other_teacher = distill("texts.txt", "static", DIM="8")
    other_directions = distill("texts.txt", "nano", DIM="8", SVD=str(other_svd))

    assert first.returncode == 0, first.stderr
    assert (other_texts.returncode, other_texts.stdout) == (65, "")
    assert "other inputs" in other_texts.stderr
    assert (other_teacher.returncode, other_teacher.stdout) == (65, "")
    assert 'this command has "static/' in other_teacher.stderr
    assert (other_directions.returncode, other_directions.stdout) == (65, "")
    assert "belongs to a different run: data" in other_directions.stderr


def trained_in(tmp_path, name):
    declared = json.loads((tmp_path / "out" / name / "sentkit.json").read_text())
    return declared["run"]["mode"], declared["parents"][0]


def test_each_seed_of_consert_starts_from_the_same_seed(example, tmp_path):
    lines = example(
        "consert",
        "sup-unsup",
        "texts.txt",
        "dev.jsonl",
        "dev.jsonl",
        "small",
        NLI="nli.jsonl",
        SEEDS="3,12",
        SIZE="large",
    )
    runs, encoders = tables(lines)

    assert sorted(seed for _, seed in runs) == [3, 3, 12, 12]
    assert encoders == ["small/mean", "seed-12/mean-last2", "seed-3/mean-last2"]
    for seed in ("seed-3", "seed-12"):
        assert trained_in(tmp_path, f"first/{seed}")[0] == "sup"
        assert trained_in(tmp_path, f"run/{seed}") == ("unsup", str(tmp_path / "out/first" / seed))


def test_consert_names_a_base_that_does_not_exist(furnished, execute):
    command = ["sh", EXAMPLES / "consert.sh", "unsup", "texts.txt", "dev.jsonl", "dev.jsonl"]
    done = execute([*command, "./none"], furnished, OUT=str(furnished / "none"))

    assert (done.returncode, done.stdout) == (66, "")
    assert "./none" in done.stderr
    assert "SIZE=" not in done.stderr


def test_simcse_is_supervised_if_settings_name_the_anchors(example, furnished):
    rows = [json.loads(line) for line in (furnished / "triplets.jsonl").open()]
    with (furnished / "triplets.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sent0", "positive", "negative"])
        writer.writerows(row.values() for row in rows)
    settings = FEW + " --field anchor=sent0"
    lines = example("simcse", "triplets.csv", "dev.jsonl", "dev.jsonl", "small", SETTINGS=settings)

    assert tables(lines)[0] == [("simcse-sup", 1)]


def test_whiten_renames_the_fields_of_both_files(example, furnished):
    renamed = []
    for pair in PAIRS:
        renamed.append({"a": pair["text_a"], "b": pair["text_b"], "rating": pair["score"]})
    write_rows(furnished, {"renamed": renamed})
    fields = "--field text_a=a --field text_b=b --field score=rating"
    lines = example(
        "whiten",
        "nano",
        "renamed.jsonl",
        "renamed.jsonl",
        DIM="4",
        FIELDS=fields,
        expected="directions|converged",
    )

    assert len(lines) == 7
    assert {json.loads(line)["n"] for line in lines} == {8}


def test_finished_runs_are_not_trained_again(example, tmp_path):
    """More seeds train only the new ones."""
    first = example("simcse", "texts.txt", "dev.jsonl", "dev.jsonl", "small", SEEDS="0,1")
    times_after_first = times(tmp_path)
    second = example("simcse", "texts.txt", "dev.jsonl", "dev.jsonl", "small", SEEDS="0..2")

    runs, encoders = tables(first)
    assert runs == [("simcse", 0), ("simcse", 1)]
    assert encoders == ["small/mean", "seed-0/cls", "seed-1/cls"]
    assert tables(second)[0] == [("simcse", 0), ("simcse", 1), ("simcse", 2)]
    assert len(times_after_first) == 2
    assert times_after_first.items() < times(tmp_path).items()


@pytest.mark.slow
def test_the_main_table(furnished, tmp_path, execute):
    """Two seeds at the published rate and at the best of two rates; a second call only prints the
    table.
    """
    data = tmp_path / "data"
    out = tmp_path / "out"
    (data / "sts").mkdir(parents=True)
    rows = gzip.compress(in_jsonl(*PAIRS).encode())
    for split in ("train", "dev", "test"):
        (data / f"sts/stsb.{split}.jsonl.gz").write_bytes(rows)
    command = ["python3", EXAMPLES / "main_table.py", furnished / "small", data, out, "consert"]
    settings = ["--rows", "6", "--batch", "3", "--seeds", "2", "--rates", "1e-3,1e-2"]

    first = execute([*command, *settings], furnished)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.stdout.splitlines()]

    assert first.returncode == 0, first.stderr
    assert lines[3][:3] == ["`consert`", "texts", "5e-07"]
    best = lines[3][6]
    rates = ("0.001", "0.01")
    dev = {
        rate: json.loads((out / f"consert/{rate}/seed-0.json").read_text())["dev"] for rate in rates
    }
    assert best == max(rates, key=dev.get)
    tests = [json.loads(line)["spearman"] for line in (out / f"consert/{best}/test.jsonl").open()]
    deviation = abs(tests[0] - tests[1]) / 2**0.5
    assert lines[3][8] == f"{sum(tests) / 2:.1f} ± {deviation:.1f}"
    assert len(lines) == 4
    times_after_first = {path: path.stat().st_mtime_ns for path in out.rglob("*.json*")}
    second = execute([*command, *settings], furnished)
    assert second.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json*")} == times_after_first
    published = execute([*command, *settings[:-1], "", "--print"], furnished)
    assert [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in published.stdout.splitlines()
    ] == [line[:6] for line in lines]


class FakeSentkit:
    """In place of the program in main_table.py: it writes the files that the script uses, and
    records its commands.
    """

    def __init__(self):
        self.commands = []
        self.dev = {}  # rate -> dev score
        self.test = 40.0

    def __call__(self, words, text=None):
        words = [str(word) for word in words]
        self.commands.append(words)
        if words[0] == "score":
            files = words[1 : words.index("--gold")]
            against = {"spearman": {"p": None if self.test is None else 0.5}}
            return in_jsonl(*({"spearman": self.test, "against": against} for _ in files))
        output = Path(words[words.index("-o") + 1])
        if words[0] == "encode":
            output.touch()
            return ""
        output.mkdir()
        rate = float(words[words.index("--lr") + 1])
        return in_jsonl({"dev": self.dev.get(rate, 50.0)})

    def count(self, name):
        return sum(words[0] == name for words in self.commands)


@pytest.fixture
def main_table(tmp_path, monkeypatch):
    """`main_table("--seeds", "2")` runs the script for the row `simcse`; `main_table.sentkit` is
    its program.
    """
    script = load_script(EXAMPLES / "main_table.py")
    data = tmp_path / "data"
    (data / "corpora").mkdir(parents=True)
    (data / "corpora/wiki.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    fake = FakeSentkit()
    monkeypatch.setattr(script, "sentkit", fake)

    def run(*flags, base="base"):
        words = ["main_table.py", base, str(data), str(tmp_path / "out"), "simcse", *flags]
        monkeypatch.setattr(sys, "argv", words)
        script.main()

    run.script = script
    run.sentkit = fake
    return run


def last_row(printed):
    return [cell.strip() for cell in printed.splitlines()[-1].split("|")[1:-1]]


PUBLISHED_ONLY = ("--rates", "")


def test_the_main_table_continues_after_a_stop_between_report_and_weights(
    main_table, tmp_path, monkeypatch
):
    def stopped(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(main_table.script.shutil, "rmtree", stopped)
        with pytest.raises(KeyboardInterrupt):
            main_table(*PUBLISHED_ONLY, "--seeds", "2")
    folder = tmp_path / "out/simcse/3e-05"
    assert (folder / "seed-1").is_dir()
    scored = main_table.sentkit.count("score")
    main_table(*PUBLISHED_ONLY, "--seeds", "2")

    assert main_table.sentkit.count("score") == scored
    assert sorted(path.name for path in folder.iterdir()) == [
        "seed-0.json",
        "seed-0.safetensors",
        "seed-1.json",
        "seed-1.safetensors",
        "test.jsonl",
    ]


def test_more_seeds_of_the_main_table_are_scored(main_table, capsys):
    """Only the new ones are trained and encoded. With fewer seeds, dev and test are of the same."""
    main_table(*PUBLISHED_ONLY, "--seeds", "1")
    trained = main_table.sentkit.count("train")
    encoded = main_table.sentkit.count("encode")
    main_table.sentkit.dev[3e-05] = 80.0
    main_table(*PUBLISHED_ONLY, "--seeds", "3")
    three = last_row(capsys.readouterr().out)
    main_table(*PUBLISHED_ONLY, "--seeds", "1")
    one = last_row(capsys.readouterr().out)

    assert main_table.sentkit.count("train") == trained + 2
    assert main_table.sentkit.count("encode") == encoded + 2
    assert three[3:] == ["70.0 ± 17.3", "40.0 ± 0.0", ".500, .500, .500"]
    assert one[3:] == ["50.0", "40.0", ".500"]


@pytest.mark.parametrize(
    ("flags", "base", "problem"),
    [
        (("--rows", "6"), "base", "rows=10000, not 6"),
        (("--batch", "6"), "base", "batch=None, not 6"),
        (("--eval-every", "6"), "base", "eval_every=50, not 6"),
        (("--precision", "bf16"), "base", "precision=fp32, not bf16"),
        ((), "other", "base=base, not other"),
    ],
)
def test_the_main_table_refuses_a_folder_of_other_runs(main_table, flags, base, problem):
    main_table(*PUBLISHED_ONLY, "--seeds", "1")
    commands = len(main_table.sentkit.commands)
    with pytest.raises(SystemExit, match=f"out has runs with {problem}; choose another OUT"):
        main_table(*PUBLISHED_ONLY, "--seeds", "1", *flags, base=base)

    assert len(main_table.sentkit.commands) == commands


def test_undefined_correlations_in_the_main_table(main_table, capsys):
    """On dev they are lower than all others; in the table they are "-"."""
    main_table.sentkit.dev = {3e-05: None, 1e-3: None, 1e-2: -5.0}
    main_table.sentkit.test = None
    main_table("--rates", "1e-3,1e-2", "--seeds", "2")
    printed = capsys.readouterr().out

    assert last_row(printed)[2:] == ["3e-05", "-", "-", "-, -", "0.01", "-5.0 ± 0.0", "-", "-, -"]
    assert last_row("\n".join(printed.splitlines()[:3]))[3:5] == ["-", "-"]


def test_the_main_table_joins_dictionaries(main_table, tmp_path):
    folder = tmp_path / "data/dictionary"
    folder.mkdir()
    words = ["--seeds", "1", "--rows", "100"]
    arguments = main_table.script.parse(
        ["base", str(tmp_path / "data"), str(tmp_path / "out"), *words]
    )
    arguments.out.mkdir()
    with pytest.raises(SystemExit, match=r"dictionary: no file \*\.jsonl or \*\.jsonl\.gz"):
        main_table.script.rows_of(arguments, "definitions", 100)
    rows = [{"entry": f"e{n % 4}", "definition": f"d{n}"} for n in range(8)]
    (folder / "a.jsonl").write_text(in_jsonl(*rows[:4]).rstrip("\n"))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(in_jsonl(*rows[4:]).encode()))
    path = main_table.script.rows_of(arguments, "definitions", 100)

    assert path.read_text() == in_jsonl(*rows)


def test_the_settings_of_the_rows_of_the_main_table():
    """They are valid for a base with vectors of 256 numbers."""
    for line in (EXAMPLES / "main_table.jsonl").open():
        row = json.loads(line)
        words = [word.format(corpus=100, guide="copy") for word in row.get("flags", ())]
        flags = list(zip(words[::2], words[1::2], strict=True))
        preset = dict(flags).get("--preset")
        kind = METHODS[row["method"]].load()
        settings = [value for flag, value in flags if flag == "--set"]
        check_widths(build(kind.Settings, kind.presets, preset, settings), 256)


def test_back_translation_makes_pairs(furnished, execute, fsmt, t5, tmp_path):
    """The texts of pairs one after the other; as two translations by hand."""
    words = ["sh", EXAMPLES / "back_translate.sh", "dev.jsonl", tmp_path / "bt.jsonl", fsmt, t5]
    search = "--set beams=2 --set max_new_tokens=5"
    done = execute(words, furnished, SEARCH=search)
    rows = [json.loads(line) for line in (tmp_path / "bt.jsonl").open()]
    texts = [pair[name] for pair in PAIRS for name in ("text_a", "text_b")]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    for number, (name, model) in enumerate((("in.txt", fsmt), ("0.jsonl", t5))):
        flags = [*search.split(), "-m", model, "-o", tmp_path / f"{number}.jsonl"]
        assert execute(["sentkit", "translate", tmp_path / name, *flags], furnished).returncode == 0
    back = [json.loads(line)["text"] for line in (tmp_path / "1.jsonl").open()]

    assert done.returncode == 0, done.stderr
    assert [row["text_a"] for row in rows] == texts
    assert [row["text_b"] for row in rows] == back


def test_word_frequency_scores_each_number_of_tokens(example, tmp_path):
    """With none and all tokens of the pairs left out."""
    pytest.importorskip("matplotlib")
    lines = example("word-frequency", "dev.jsonl", "small", COUNTS="500", expected="^$")
    rows = [json.loads(line) for line in lines]

    means = [row for row in rows if "model" in row]
    assert [row["model"] for row in means] == ["small"] * 7
    assert [row.get("k") for row in means] == [None, 3, 5, 7, 3, 5, 7]
    for row in means:
        [value] = row.keys() - {"model", "k", "rank"}
        assert value in ("norm", "distance", "dot product")
    scores = [(row["series"], row["left_out"]) for row in rows if "series" in row]
    tokens = [json.loads(line)["token"] for line in (tmp_path / "out/1.tokens.jsonl").open()]
    assert tokens[:2] == ["[CLS]", "[SEP]"]
    assert len({*tokens}) > 5  # all tokens of the pairs
    assert scores == [("small/mean-last2", count) for count in (0, len({*tokens}))]
    assert all((tmp_path / "out" / name).stat().st_size for name in ("words-1.svg", "masking.svg"))


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"COUNTS": "2 600"}, "word-frequency.sh: COUNTS has 600: a number from 1 to 500"),
        ({"COUNTS": "2", "READOUT": "cls"}, "word-frequency.sh: leave_out cannot be used with"),
    ],
)
def test_word_frequency_refuses_wrong_variables(furnished, execute, variables, problem):
    pytest.importorskip("matplotlib")
    command = ["sh", EXAMPLES / "word-frequency.sh", "dev.jsonl", "nano"]
    done = execute(command, furnished, **variables)

    assert done.returncode == 2
    assert done.stderr.startswith(problem)


def test_domain_shift_has_a_line_for_each_domain_and_seed(example, furnished, tmp_path):
    pytest.importorskip("matplotlib")
    for name, rows in (("short", TEXTS[:4]), ("long", TEXTS[4:])):
        (furnished / f"{name}.txt").write_text("".join(f"{row}\n" for row in rows))
    pairs = [{**pair, "topic": "ab"[n % 2]} for n, pair in enumerate(PAIRS)]
    (furnished / "topics.jsonl").write_text(in_jsonl(*pairs))
    lines = example(
        "domain-shift", "simcse", "small", "topics.jsonl", "short.txt", "long.txt", SEEDS="0..1"
    )
    table = list(csv.DictReader(lines, delimiter="\t"))

    expected = []
    for trained in ("base", "short", "short", "long", "long"):
        expected += [(trained, "a"), (trained, "b")]
    assert [(row["trained"], row["domain"]) for row in table] == expected
    assert {row["n"] for row in table} == {"4"}
    assert all(-100 <= float(row["spearman"]) <= 100 for row in table)
    assert "short" in (tmp_path / "out/domains.svg").read_text()


def words_in(picture):
    """The texts of an SVG file, without its numbers."""
    texts = []
    for element in ElementTree.parse(picture).iter():
        if element.tag.endswith("}text"):
            texts.append("".join(element.itertext()))
    return [re.sub(r"\d+\.\d+", "N", text) for text in texts if re.search("[a-z]{2}", text)]


def test_the_pictures_of_the_readme_show_the_numbers_of_their_commands(tmp_path, execute):
    """After a change of a picture: sh examples/pictures.sh"""
    pytest.importorskip("matplotlib")
    script = EXAMPLES / "pictures.sh"
    done = execute(["sh", script, "made"], tmp_path)
    pictures = sorted((EXAMPLES / "pictures").glob("*.svg"))
    readme = (EXAMPLES / "README.md").read_text()
    shown = re.findall(r"\(pictures/(\w+)\.svg\) \| `sentkit plot (.*)` \|", readme)

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(name for name, _ in shown) == [path.stem for path in pictures]
    assert all(f"draw {name} {command}\n" in script.read_text() for name, command in shown)
    for path in pictures:
        new_path = tmp_path / "made" / path.name
        rows = rows_in(path.with_suffix(".jsonl"))
        new_rows = rows_in(new_path.with_suffix(".jsonl"))
        assert len(new_rows) == len(rows)
        for new_row, row in zip(new_rows, rows, strict=True):
            assert new_row == {name: near(value) for name, value in row.items()}
        assert words_in(new_path) == words_in(path)
        assert path.stat().st_size < 40_000


def rows_in(path):
    return [json.loads(line) for line in path.open()]


def near(value):
    """Equal, except for the rounding of similarities."""
    values = value if isinstance(value, list) else [value]
    numbers = [number for number in values if number is not None]
    if not numbers or not isinstance(numbers[0], float | int):
        return value
    return pytest.approx(value, abs=0.01)


def test_efficiency_measures_training_and_encoding(furnished, execute):
    settings = ["--settings", FEW.replace("--threads 1 ", ""), "--rounds", "2", "--fitted", "mean"]
    encoders = ["--readout", "mean", "--transform", "center", "--train", "simcse", "--batch", "5"]
    command = ["python3", EXAMPLES / "efficiency.py", "small", "texts.txt", "dev.jsonl"]
    done = execute([*command, *encoders, *settings], furnished)
    cells = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()
    ]

    assert done.returncode == 0, done.stderr
    assert [row[0] for row in cells[2:5]] == ["mean", "center", "simcse"]
    # the last of nine texts has no negative
    assert [row[2] for row in cells[2:5]] == ["-", "-", "2"]
    assert cells[2][1] == "-"
    assert all(float(row[n]) >= 0 for row in cells[3:5] for n in (1, 3))
    assert done.stdout.endswith("cpu, fp32, threads: 1, sentences: 16, batch: 5\n")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "no encoder: add --train, --readout or --transform"),
        (["--readout", "mean", "--rounds", "0"], "--rounds is 0, expected a number above 0"),
    ],
)
def test_efficiency_refuses_flags_that_measure_nothing(furnished, execute, flags, problem):
    command = ["python3", EXAMPLES / "efficiency.py", "small", "texts.txt", "dev.jsonl", *flags]
    done = execute(command, furnished)

    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr


def test_a_stopped_efficiency_stops_its_training(furnished, tmp_path):
    """The settings have the words of a shell."""
    program = tmp_path / "sentkit"
    program.write_text(
        '#!/bin/sh\nprintf "%s\\n" $$ "$@" >words.part\nmv words.part words\nexec sleep 60\n'
    )
    program.chmod(0o755)
    command = [sys.executable, EXAMPLES / "efficiency.py", "nano", "texts.txt", "dev.jsonl"]
    command += ["--train", "simcse", "--settings", "--field 'text=my title'"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PATH": path})
    words = tmp_path / "words"
    deadline = time.monotonic() + 30
    while not words.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    number, *arguments = words.read_text().splitlines()
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=30) == 75
    assert arguments[arguments.index("--field") + 1] == "text=my title"
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


def test_pairsupcon_keeps_the_last_weights(example, tmp_path):
    settings = f"{FEW} --set head_width=8"
    lines = example("pairsupcon", "nli.jsonl", "dev.jsonl", "dev.jsonl", "small", SETTINGS=settings)

    assert tables(lines) == ([("pairsupcon", 1)], ["small/mean", "run/mean"])
    assert json.loads((tmp_path / "out/run/sentkit.json").read_text())["run"]["final"] == "last"


def test_defsent_plus_runs_three_steps(example, tmp_path):
    """Each starts from the base and uses the entries of the previous step; the last one has ICA
    axes.

    By default, these axes have the deviation of the entries.
    """
    lines = example(
        "defsent_plus",
        "dictionary.jsonl",
        "dev.jsonl",
        "dev.jsonl",
        "small",
        expected=EXPECTED,
        PRESET="bert-base",
        LR="0.01 0.01 0.01",
        SEEDS="0,1",
        SETTINGS=f"{FEW} --set readout=mean,cls",
    )
    rows = [json.loads(line) for line in lines]
    records = {}  # (step, seed) -> what its checkpoint records
    for step in (1, 2, 3):
        for seed in (0, 1):
            path = tmp_path / f"out/step-{step}/seed-{seed}/sentkit.json"
            records[step, seed] = json.loads(path.read_text())

    assert len({record["run"]["base"] for record in records.values()}) == 1
    assert len({record["run"]["entries"] for record in records.values()}) == 3
    assert {record["entries"]["readout"] for record in records.values()} == {"mean"}
    for (step, _), record in records.items():
        if step == 3:
            assert record["entries"]["steps"][0].startswith("+ica:")
        else:
            assert "steps" not in record["entries"]
    for step in (1, 2):
        best_seed = max((0, 1), key=lambda seed, step=step: records[step, seed]["dev"])
        maker = records[step + 1, 0]["entries"]["entries"]["parents"][0]
        assert maker == str(tmp_path / f"out/step-{step}/seed-{best_seed}")
    assert [row["n"] for row in rows if "spearman" in row] == [8] * 4
    plain = load_file(tmp_path / "out/entries-3.safetensors")["embeddings"].std(axis=0)
    in_axes = load_file(tmp_path / "out/entries-3-ica.safetensors")["embeddings"].std(axis=0)
    assert in_axes[in_axes > 0] == pytest.approx(plain.mean(), rel=1e-3)


def test_defsent_plus_scores_the_steps_of_this_call(example, tmp_path):
    """Vectors of other steps in OUT are from an earlier call. Rates can have several blanks."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/step-3.safetensors").touch()
    lines = example(
        "defsent_plus",
        "dictionary.jsonl",
        "dev.jsonl",
        "dev.jsonl",
        "small",
        expected=EXPECTED,
        PRESET="bert-base",
        STEPS="2",
        LR="0.01  0.02",
        ICA="none",
        SETTINGS=FEW.replace("--lr 0.01 ", "") + " --set readout=mean",
    )
    rows = [json.loads(line) for line in lines]
    rates = []
    for step in (1, 2):
        record = json.loads((tmp_path / f"out/step-{step}/sentkit.json").read_text())
        rates.append(record["run"]["lr"])

    assert rates == [0.01, 0.02]
    files = [Path(row["file"]).name for row in rows if "file" in row]
    assert files == ["base.safetensors", "step-1.safetensors", "step-2.safetensors"]


def test_defsent_plus_needs_a_rate_for_each_step(furnished, execute):
    command = ["sh", EXAMPLES / "defsent_plus.sh", "dictionary.jsonl", "dev.jsonl", "dev.jsonl"]
    done = execute([*command, "small"], furnished, PRESET="bert-base", LR="1e-4 2e-4")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("defsent_plus.sh: LR needs one rate for each step, 3, but has 2\n")


@pytest.mark.parametrize(
    ("script", "needed"), [("defsent_plus", "PRESET=bert-base"), ("consert", "SIZE=base")]
)
def test_a_base_of_another_size_needs_a_recipe(script, needed, furnished, execute):
    command = ["sh", EXAMPLES / f"{script}.sh"]
    if script == "consert":
        command.append("unsup")
    command += ["dictionary.jsonl", "dev.jsonl", "dev.jsonl", "small"]
    done = execute(command, furnished, OUT=str(furnished / "none"))

    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "small: the papers have no settings for an encoder of this family and size" in done.stderr
    )
    assert needed in done.stderr


SYNSETS = [  # every fiftieth is held out; of the others, every fifth is a candidate
    ("00000007-n", "dog", "an animal that barks"),
    ("00000007-n", "hound", "an animal that barks"),
    ("00000010-n", "cat", "an animal that purrs"),
    ("00000011-n", "cow", "an animal that gives milk"),
    ("00000057-n", "rain", "water that falls from clouds"),
]
PACKAGE = '''
def fit(x):
    """Fit the model to some rows of data.

    {text}

    Parameters
    ----------
    x: the rows
    """

class Model:
    """Short."""

def refit(x):
    """Fit the model to all rows of data.

    {text}
    """

def _private(x):
    """Compute what no user of the package needs.

    {other}
    """
'''
LONG_TEXT = "The rows are read once, in the order of the file, and the state is kept between " + (
    "two calls, so that a second call continues where the first one stopped."
)


def test_models_are_compared_on_retrieval_tests_that_are_made(tmp_path, execute):
    """Definitions find the entries of their synset, paraphrases each other, and first lines of
    docstrings their text.
    """
    data = tmp_path / "data"
    out = tmp_path / "out"
    for folder in ("dictionary", "senteval", "clustering"):
        (data / folder).mkdir(parents=True)
    names = ("synset", "entry", "definition")
    synsets = in_jsonl(*(dict(zip(names, row, strict=True)) for row in SYNSETS)).encode()
    (data / "dictionary/wordnet2024.jsonl.gz").write_bytes(gzip.compress(synsets))
    mrpc = [("a dog runs", "the dog ran", 1), ("rain", "snow", 0), ("a dog runs", "dogs run", 1)]
    rows = [{"text_a": a, "text_b": b, "label": label} for a, b, label in mrpc]
    write_rows(data / "senteval", {"mrpc.test": rows})
    questions = [{"text": text, "label": 0} for text in TEXTS]
    write_rows(data / "clustering", {"stackoverflow": questions})
    package = tmp_path / "tiny"
    package.mkdir()
    other = LONG_TEXT.replace("The", "All")
    (package / "__init__.py").write_text(PACKAGE.format(text=LONG_TEXT, other=other))
    program = "import models; models.PACKAGES = ['tiny']; "
    program += f"models.main(models.Path({str(data)!r}), models.Path({str(out)!r}), "
    program += "['a=static', 'b=static'], 'retrieval')"
    search_path = f"{EXAMPLES}:{tmp_path}"

    done = execute([sys.executable, "-c", program], tmp_path, PYTHONPATH=search_path)

    def written(name):
        folder = out / "data/retrieval" / name
        texts = {}
        for kind in ("corpus", "queries"):
            for line in (folder / f"{kind}.jsonl").read_text().splitlines():
                row = json.loads(line)
                texts[row["_id"]] = row["text"]
        header, *lines = (folder / "qrels.tsv").read_text().splitlines()
        assert header == "query-id\tcorpus-id\tscore"
        found = [line.split("\t")[:2] for line in lines]
        candidates = {text for id_, text in texts.items() if id_.startswith("c")}
        return candidates, {(texts[query], texts[text]) for query, text in found}

    assert done.returncode == 0, done.stderr
    barks, falls = SYNSETS[0][2], SYNSETS[4][2]
    assert written("definitions") == (
        {"dog", "hound", "cat", "rain"},
        {(barks, "dog"), (barks, "hound"), (falls, "rain")},
    )
    assert written("paraphrases") == (
        {"the dog ran", "snow", "dogs run"},
        {("a dog runs", "the dog ran"), ("a dog runs", "dogs run")},
    )
    first_line = "Fit the model to some rows of data."
    assert written("docstrings") == ({LONG_TEXT}, {(first_line, LONG_TEXT)})
    quality, speed = done.stdout.split("\n\n| one thread |")
    assert [line.split("|")[1].strip() for line in speed.splitlines()[2:]] == ["a", "b"]
    megabytes = (ROOT / "sentkit/static/model.safetensors").stat().st_size / 1e6
    assert [line.split("|")[3].strip() for line in speed.splitlines()[2:]] == [
        f"{megabytes:.1f}"
    ] * 2
    assert re.search(r"^\| b ", quality, re.MULTILINE)


def test_models_needs_only_the_folders_of_its_suites(furnished, tmp_path, execute):
    """A second call replaces the links of the first one. Missing files and packages are named."""
    (tmp_path / "data/sts").mkdir(parents=True)
    (tmp_path / "data/sts/stsb.test.jsonl").write_text((furnished / "dev.jsonl").read_text())
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / "data/senteval").symlink_to(tmp_path / "absent")
    command = [sys.executable, EXAMPLES / "models.py", "data", "out", "static", "--suites"]
    calls = [execute([*command, "sts"], tmp_path) for _ in range(2)]
    retrieval = execute([*command, "retrieval"], tmp_path)

    for done in calls:
        assert done.returncode == 0, done.stderr
        assert re.search(r"^\| static ", done.stdout, re.MULTILINE)
        assert "no speed and size: data/clustering/stackoverflow.jsonl not found" in done.stderr
    assert [path.name for path in (out / "data").iterdir()] == ["sts"]
    assert retrieval.returncode == 1
    assert retrieval.stderr == (
        "models.py: data/dictionary/wordnet2024.jsonl.gz: not found; the suite retrieval needs it\n"
    )


def test_models_names_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("OMP_NUM_THREADS", "SENTKIT_THREADS"):  # the script sets them
        monkeypatch.setenv(name, "1")
    models = load_script(EXAMPLES / "models.py")
    monkeypatch.setattr(models, "PACKAGES", ["no_such_package"])
    with pytest.raises(SystemExit, match="the package no_such_package is not installed"):
        next(models.docstrings())


SHARED = [
    ("dog", "an animal that barks"),
    ("dog", "a  Hot sausage"),
    ("dog", "a bad thing"),
    ("frank", "a hot sausage"),
    ("frank", "honest and open"),
    ("pup", "a young seal"),
    ("pup", "an animal that barks"),
    ("pup", "a small shark"),
    ("cat", "an animal that purrs"),
    ("cat", "a jazz fan"),
    ("cat", "a whip"),
    ("cat", "a boat"),
]


def test_a_definition_of_two_entries_is_not_held_out(example, furnished, tmp_path):
    """Its synonym has the same definition. Every fifth of the other definitions is held out."""
    rows = in_jsonl(*({"entry": entry, "definition": text} for entry, text in SHARED))
    (furnished / "shared.jsonl").write_text(rows)
    lines = example("reverse_dictionary", "shared.jsonl", "small", SETTINGS=FEW)
    known_rows = (tmp_path / "out/known.jsonl").read_text()
    held_out_rows = (tmp_path / "out/held.jsonl").read_text()

    assert held_out_rows == in_jsonl({"entry": "cat", "definition": "an animal that purrs"})
    assert sorted((known_rows + held_out_rows).splitlines()) == sorted(rows.splitlines())
    assert [json.loads(line)["n"] for line in lines] == [1, 1]


def test_a_sample_holds_all_definitions_of_an_entry(tmp_path):
    """It depends on the seed and not on the order of the rows."""
    rows = [{"entry": f"e{n % 40}", "definition": f"d{n}", "more": n} for n in range(100)]
    content = in_jsonl(*rows).encode()
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(content))

    def sampled(text, *flags):
        command = [sys.executable, EXAMPLES / "sample_dictionary.py", *flags]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def drawn(*flags, rows=rows):
        return {row["entry"] for row in sampled(in_jsonl(*rows), *flags)[0]}

    sample, said = sampled(in_jsonl(*rows), "--entries", "10")
    entries = {row["entry"] for row in sample}
    assert len(entries) == 10
    assert sample == [row for row in rows if row["entry"] in entries]
    assert said == f"sample_dictionary.py: 10 of 40 entries, {len(sample)} of 100 rows\n"
    assert sampled("", "--entries", "10", tmp_path / "d.jsonl.gz") == (sample, said)
    assert entries == drawn("--entries", "10", rows=rows[::-1]) < drawn("--entries", "12")
    assert entries != drawn("--entries", "10", "--seed", "1")
    assert drawn() == drawn("--entries", "1000") == {f"e{n}" for n in range(40)}


WITH_ARGUMENTS = [
    path.stem
    for path in sorted(EXAMPLES.glob("*.sh"))
    if re.search(r"^# Usage: sh \S+ [A-Z]", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_a_script_without_its_arguments_prints_its_usage(execute, tmp_path, name):
    done = execute(["sh", EXAMPLES / f"{name}.sh"], tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"usage: (sh examples/)?{name}\.sh [A-Z].*\n", done.stderr)
