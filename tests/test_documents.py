"""Documents, man pages, help texts and examples agree with the program."""

import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.util import cache_from_source
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from api_server import api_server
from sentkit import Encoder
from sentkit.cli import every_command, groups, program
from sentkit.errors import UsageError
from sentkit.flags.help_texts import PAGES, help_of
from sentkit.manual import pages
from sentkit.papers import PAPERS
from sentkit.papers.published import published
from sentkit.reports.suites import STS
from sentkit.training.catalogue import load
from sentkit.training.settings import build
from support import (
    ROOT,
    SMALL,
    forking,
    load_script,
    make_classifier,
    python_of,
    write_affine,
    write_rows,
    write_script,
    write_small_tokenizer,
)

DOCUMENTS = {
    name: (ROOT / name).read_text()
    for name in (
        "README.md",
        "examples/README.md",
        "tests/benchmarks/README.md",
        "sentkit/README.md",
    )
}
OF_PAPERS = {paper.key: f"sentkit/papers/{paper.folder}/README.md" for paper in PAPERS.values()}
DOCUMENTS |= {name: (ROOT / name).read_text() for name in OF_PAPERS.values()}
README = DOCUMENTS["README.md"]
SYSTEMS = [json.loads(line) for line in (ROOT / "examples/systems.jsonl").open()]
HELP = {
    name: help_of(f"sentkit {name}", inspect.getdoc(command))
    for name, command in (every_command() | groups()).items()
}
PAIRS = [
    ("a man plays a guitar", "someone makes music", 3.5, "music"),
    ("a cat sleeps", "a kitten is asleep", 4.5, "animals"),
    ("a dog runs", "the stock market fell", 0.0, "animals"),
    ("a woman sings a song", "a lady is singing", 4.8, "music"),
    ("two people walk", "a car drives by", 1.0, "music"),
    ("birds fly south", "the birds are flying", 3.9, "animals"),
]


def write_encoder(folder, **sizes):
    """An encoder with few tokens, and always the same weights: some others learn nothing from
    the few texts of a document, which `train` warns about.
    """
    import torch
    import transformers

    torch.manual_seed(4)
    vocabulary = write_small_tokenizer(folder)
    config = transformers.BertConfig(**SMALL | {"vocab_size": vocabulary} | sizes)
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "sentkit.json").write_text('{"readout": "mean"}')


def write_models(folder, execute):
    """Classifiers, and a small encoder."""
    write_encoder(folder / "SMALL")
    make_classifier("bert", 2, folder / "CLASSIFIER")
    make_classifier("bert", 1, folder / "CROSSENCODER")
    probe = ["probe", "reviews.safetensors", "--label", "label", "--penalties", "1"]
    execute(["sentkit", *probe, "-o", "ratings.safetensors"], folder)


def search_articles(folder, execute):
    """Hits of questions in articles, with judgements; and a dictionary."""
    (folder / "dict.jsonl").write_text('{"word":"dog","definition":"an animal that barks"}\n')
    articles = [{"id": f"d{n}", "text": text} for n, (text, *_) in enumerate(PAIRS)]
    questions = [{"id": f"q{n}", "text": text} for n, (_, text, *_) in enumerate(PAIRS)]
    qrels = "".join(f"q{n}\td{n}\t1\n" for n in range(len(PAIRS)))
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    write_rows(folder, {"articles": articles, "questions": questions})
    for name in ("articles", "questions"):
        execute(["sentkit", "encode", f"{name}.jsonl", "-o", f"{name}.safetensors"], folder)
    flags = ["--queries", "questions.safetensors", "--corpus", "articles.safetensors"]
    execute(["sentkit", "search", *flags, "-o", "hits.jsonl"], folder)


@pytest.fixture(scope="session")
def furnished(tmp_path_factory, marian, execute):
    """A folder with the files that the help texts name."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("EN-DE", "DE-EN"):
        shutil.copytree(marian, folder / name)
        settings = json.loads((marian / "generation_config.json").read_text()) | {"max_length": 6}
        (folder / name / "generation_config.json").write_text(json.dumps(settings))
    rows = [
        {"text_a": a, "text_b": b, "score": x, "topic": t, "same": x > 3} for a, b, x, t in PAIRS
    ]
    reviews = [
        {"text": f"{word} {n}", "label": word} for n in range(12) for word in ("good", "bad")
    ]
    news = [{"text": text, "label": topic} for *texts, _, topic in PAIRS for text in texts]
    synonyms = {"cat": ["kitten"], "dog": ["hound"], "sea": ["ocean"]}
    thesaurus = [{"word": word, "synonyms": similar} for word, similar in synonyms.items()]
    files = {
        "pairs": rows,
        "reviews": reviews,
        "more": reviews,
        "thesaurus": thesaurus,
        "news": news,
    }
    write_rows(folder, files | {f"data/sts/{name}": rows for name in STS})
    (folder / "a.csv").write_text("sent1,sent2\na,b\n")
    (folder / "titles.csv").write_text('id,title\n1,A cat\n2,"A dog, running"\n3,The sea\n')
    (folder / "titles.txt").write_text("A cat\nA dog\nThe sea\n")
    (folder / "table.csv").write_text("id,text\n1,A cat\n")
    (folder / "words.tsv").write_text(
        "entry\tdefinition\ncat\ta small animal\ncat\ta pet that purrs\n"
    )
    for words in (
        *(
            "pairs.jsonl -o new.jsonl",
            "pairs.jsonl -o a.safetensors",
            "titles.txt -o titles.safetensors",
            "titles.txt -o golden.safetensors",
        ),
        *(
            "titles.txt -o signs.safetensors --store binary",
            "titles.txt -o q.jsonl",
            "titles.txt -o titles/",
        ),
        *("reviews.jsonl -o reviews.safetensors", "news.jsonl -o news.safetensors"),
    ):
        execute(["sentkit", "encode", *words.split()], folder)
    search_articles(folder, execute)
    write_models(folder, execute)
    encoder = '{"encoder":"nano/%s:%012d","spearman":%d}\n'
    for name, form in (("layers", "L%d:mean"), ("masked", "mean/out%d")):
        (folder / f"{name}.jsonl").write_text(
            "".join(encoder % (form % n, n, 50 + n) for n in range(5))
        )
    table = (
        "method\tdata\tbatch\ttest\ttest_sd\nsimcse\tnews\t16\t50.1\t0.5\nct\tnews\t16\t48.5\t-\n"
    )
    (folder / "table.tsv").write_text(table)
    step = (
        '{"step":%d,"loss":%d,"terms":{"contrast":%d},"lr":[0.1]}\n'
        '{"step":%d,"dev":%d,"best":false}\n'
    )
    log = "".join(step % (n, 9 - n, 9 - n, n, 50 + n) for n in range(5))
    for name in ("ckpt", "run1", "run2"):
        (folder / name).mkdir()
        (folder / name / "steps.jsonl").write_text(log)
    for source, copy in (
        *(
            ("new.jsonl", "old.jsonl"),
            ("new.jsonl", "part1.jsonl"),
            ("a.safetensors", "b.safetensors"),
        ),
        *(("a.safetensors", "part2.safetensors"), ("reviews.safetensors", "more.safetensors")),
    ):
        shutil.copy(folder / source, folder / copy)
    for name, rows in (("shard1", "new.jsonl"), ("shard2", "titles.safetensors")):
        execute(
            ["sentkit", "whiten", "fit", rows, "--kind", "center", "-o", f"{name}.safetensors"],
            folder,
        )
    directions = np.eye(256, 8, dtype=np.float32)
    mean = np.zeros(256, np.float32)
    write_affine(folder / "whitening.safetensors", directions, mean, {"kind": "whitening"})
    return folder


@pytest.fixture
def workplace(furnished, tmp_path):
    return Path(shutil.copytree(furnished, tmp_path / "workplace"))


def test_the_committed_man_pages_are_the_generated_ones():
    """After a change of a flag: python -m sentkit.manual man

    After a change of a setting: python -m examples.methods_page man/man7/sentkit-methods.7
    """
    generated = {f"man1/{name}": page for name, page in pages(program()).items()}
    generated["man7/sentkit-methods.7"] = load_script(ROOT / "examples/methods_page.py").page()

    assert [
        name for name, page in generated.items() if (ROOT / "man" / name).read_text() != page
    ] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "man").rglob("*.[1-9]")), ids=lambda page: page.name
)
def test_a_man_page_fits_into_80_columns(page):
    """Unfilled lines begin at column 7, or where `.in` says; `man` leaves 2 columns at the right
    empty.
    """
    indent = 7
    unfilled = False
    long = []
    for line in page.read_text().splitlines():
        if line in (".nf", ".fi"):
            unfilled = line == ".nf"
        elif line.startswith(".in"):
            indent = int(line[4:-1] or 7)
        elif (
            unfilled
            and indent + len(re.sub(r"\\f.|\\&|\\(?=-)", "", line).replace(r"\e", "/")) > 80
        ):
            long.append(line)

    assert long == []


def test_the_manual_page_of_the_class_is_that_of_the_class(execute, tmp_path):
    """Its synopsis is the signature, each method is listed, and the example prints what the page
    says.
    """
    page = (ROOT / "man/man3/sentkit-encoder.3").read_text().replace("\\-", "-")
    synopsis, example, output, *_ = re.findall(r"\.nf\n(.*?)\n\.fi", page, re.DOTALL)
    constructor = re.search(r"Encoder(\(.*?\))\n", synopsis, re.DOTALL)[1]
    parameters = [
        re.sub(": [^=]+ = ", "=", parameter)
        for parameter in map(str, signature(Encoder).parameters.values())
    ]
    methods = {name for name in vars(Encoder) if not name.startswith("_")} - {"loaded"}

    assert re.sub(
        r"\s+", " ", constructor
    ) == f"({', '.join([parameters[0], '*', *parameters[1:]])})".replace("'", '"')
    assert methods <= {*re.findall(r"^\.TP\n([a-z_]+)", page, re.MULTILINE)}
    (tmp_path / "example.py").write_text(f"{example}\n")
    completed = execute(["python3", "example.py"], tmp_path)
    assert (completed.stdout, completed.stderr) == (f"{output}\n", "")


def test_the_manual_page_of_the_class_shows_how_sentence_transformers_loads_nano(execute, tmp_path):
    """The lines of the page run, and the vectors are those of the class."""
    page = (ROOT / "man/man3/sentkit-encoder.3").read_text().replace("\\-", "-")
    *_, export, loading = re.findall(r"\.nf\n(.*?)\n\.fi", page, re.DOTALL)
    text = "a cat sleeps"
    expected = Encoder("nano", precision="fp32", device="cpu").encode(text)
    execute(export.split(), tmp_path)
    (tmp_path / "loading.py").write_text(f'{loading}\nprint(*model.encode("{text}"))\n')
    dtype, vector = execute(["python3", "loading.py"], tmp_path).stdout.splitlines()

    assert dtype == "float32"
    assert np.array(vector.split(), np.float32) == pytest.approx(expected, abs=1e-5)


def test_every_page_of_text_belongs_to_a_command():
    names = {f"{name.replace(' ', '-')}.txt" for name in HELP}

    assert {file.name for file in PAGES.iterdir()} <= names | {"sentkit.txt", "all-pages.txt"}


def test_every_man_page_is_installed():
    """The build copies the folder man/ as it is, so each page must be in the folder of its
    section.
    """
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    files = [path.relative_to(ROOT / "man") for path in (ROOT / "man").rglob("*") if path.is_file()]

    assert build["shared-data"] == {"man": "share/man"}
    assert {path.name for path in files if path.suffix == ".1"} == set(pages(program()))
    assert all(path.parent.name == f"man{path.suffix[1:]}" for path in files)


def copy_source(path, target):
    """Copy a file with its time, and its bytecode, which is valid for this time: compiling all
    modules again takes seconds.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)
    bytecode = Path(cache_from_source(path))
    if path.suffix == ".py" and bytecode.exists():
        cache = target.parent / bytecode.parent.name
        cache.mkdir(exist_ok=True)
        shutil.copy2(bytecode, cache)


@pytest.fixture
def checkout(tmp_path, forked_program):
    """The tracked files, and a virtual environment for first.sh in which pip does nothing.

    Its `sentkit` runs in forks of one process of these files.
    """
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0")[:-1]:
        copy_source(ROOT / name, tmp_path / "checkout" / name)
    programs = tmp_path / "checkout/.venv/bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    with forking(tmp_path / "checkout", forked_program) as forked:
        for name, line in {
            "python": f'[ "$2" = pip ] || exec {shlex.join(python_of(forked))} "$@"',
            "sentkit": f'exec {shlex.join(forked)} "$@"',
        }.items():
            write_script(programs / name, line)
        yield tmp_path / "checkout"


def test_the_documents_run_as_copied_from_a_bare_checkout(checkout):
    """Run every block of all documents, in order, in one shell that starts without sentkit on its
    PATH.

    README.md trains nano. The trainings of the other documents are those of a small encoder, and so
    is the table of `distill-static`, for which nano has 16,384 tokens to encode.
    """
    write_encoder(checkout.parent / "SMALL", hidden_size=80)
    blocks = [
        text if kind == "sh" else f"python - <<'END'\n{text}END\n"
        for document in DOCUMENTS.values()
        for kind, text in re.findall(r"```(sh|python)\n(.*?)```", document, re.DOTALL)
    ]
    of_readme = README.count("```sh\n") + README.count("```python\n")
    for number, block in enumerate(blocks[of_readme:], of_readme):
        if re.search("sentkit (distill-static|train) ", block):
            blocks[number] = block.replace("-m nano", "-m ../SMALL", 1)
    script = "".join(
        f"echo BLOCK {n}; echo BLOCK {n} >&2\n{block}" for n, block in enumerate(blocks)
    )
    folders = os.environ["PATH"].split(":")
    path = ":".join(folder for folder in folders if not Path(folder, "sentkit").exists())
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    options = {"capture_output": True, "text": True, "check": False}
    completed = subprocess.run(["sh", "-ec", script], cwd=checkout, env=environment, **options)
    outputs = re.split(r"BLOCK \d+\n", completed.stdout)[1:]
    errors = re.split(r"BLOCK \d+\n", completed.stderr)[1:]

    assert completed.returncode == 0, errors[-1]
    for block, output, error in zip(blocks, outputs, errors, strict=True):
        assert output or " -o " in block
        # Five layers, three readouts; the default; a gate.
        assert "layers.sh" not in block or output.count("\n") == 17
        assert (
            not [line for line in error.splitlines() if not expected(line)] or "first.sh" in block
        ), error
    assert f". '{checkout}/.venv/bin/activate'" in errors[0]
    shown = re.search(r"```\n\n```\n(.*?)```", README, re.DOTALL)[1]
    # Similarities differ in their last digits from machine to machine.
    assert re.sub(r"(\d\.\d{4})\d+", r"\1…", outputs[0]).splitlines() == shown.splitlines()
    assert outputs[1] == outputs[0]
    assert_recipes_show_what_they_say(dict(zip(blocks, outputs, strict=True)))
    listing = subprocess.check_output(["git", "-C", str(ROOT), "ls-files"], text=True)
    files = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    new = files - {*listing.splitlines()}
    ignored = r"out/|\.venv/|.*__pycache__/"
    assert [name for name in sorted(new) if not re.match(ignored, name)] == []


def test_no_file_has_the_marks_of_a_merge():
    words = ["git", "-C", str(ROOT), "grep", "--line-number", "-E", r"^(<<<<<<<|>>>>>>>) "]
    found = subprocess.run(words, capture_output=True, text=True)

    assert (found.returncode, found.stdout) == (1, "")


def assert_recipes_show_what_they_say(outputs):
    """The training improves the scores of pairs; search, duplicates and probe have results."""

    def records(words):
        [output] = [output for block, output in outputs.items() if words in block]
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    _, trained, *clusters = records("--op delete=0.2")
    base = records("-o out/mean.safetensors")[1]
    [searched] = records('search "how do I resume a stopped run"')
    probed, *predicted = records("probe --label label")
    after, before = map(
        float, re.search(r"([\d.]+) on these pairs after ([\d.]+)", README).groups()
    )

    assert trained["spearman"] > base["spearman"]
    assert (before, after) == pytest.approx((base["spearman"], trained["spearman"]), abs=1)
    assert [cluster["cluster"] for cluster in clusters] == [0, 1, 2]
    assert "--resume" in searched["hits"][0]["text"]
    assert probed["accuracy"] > probed["majority"]
    assert [row["label"] for row in predicted] == ["weather", "sport"]


CPU_BUILD = "sh examples/first.sh https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize("address", ["", "https://builds.example"])
def test_the_command_for_machines_without_a_gpu_is_shown_before_the_installation(tmp_path, address):
    """A line to copy: in the README, and by the script while the address is not set."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples/first.sh", tmp_path / "examples")
    write_script(tmp_path / ".venv/bin/python", "echo CALLED >&2\nexit 3")
    environment = os.environ | {"PIP_EXTRA_INDEX_URL": address}
    first = ["sh", tmp_path / "examples/first.sh"]
    completed = subprocess.run(first, env=environment, capture_output=True, text=True, check=False)
    copied = subprocess.run(
        ["sh", "-c", CPU_BUILD], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert completed.returncode == 3
    assert (f"\n  {CPU_BUILD}\n" in completed.stderr.partition("CALLED")[0]) == (not address)
    assert f"`{CPU_BUILD}`" in README.partition("## Installation")[2].partition("```")[0]
    assert (copied.returncode, CPU_BUILD in copied.stderr) == (3, False)


def expected(line):
    """At layer 0 [CLS] is the same for every text. A run reports its readout and its scores on
    --dev. The small model divides all words, as those of a language that it does not know.
    """
    if "L00-cls" in line or "see LANGUAGES in man sentkit-encode" in line:
        return True
    return re.match(r"sentkit train: ([-\d]+ [:\d]+  )?(seed \d+: )?(step|readout) ", line)


def examples_of(text):
    return [*text.examples, *"\n".join(text.sections.get("EXAMPLES", [])).splitlines()]


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, text in HELP.items() for line in examples_of(text)]
)
def test_an_example_of_the_help_runs(name, line, workplace, execute):
    if name.startswith("plot") and " -o " in line:
        pytest.importorskip("matplotlib")
    line = line.removeprefix("watch ")  # it ends with a key of a person
    # A table has a row for each token, and the vectors of this server need all trials of `diff`.
    base = "SMALL" if name == "distill-static" or "diff http" in line else "nano"
    for old, new in {
        "CHECKPOINT": base,
        "-m BASE": f"-m {base}",
        "--fail-under 80": "",
        "--dim 64": f"-m {base} --dim 8",
        "sentkit probe": "sentkit probe --penalties 1",
    }.items():
        line = line.replace(old, new)
    if "titles.safetensors" in line and " -o titles" in line:
        (workplace / "titles.safetensors").unlink()
    if " -o ratings" in line:
        (workplace / "ratings.safetensors").unlink()
    if " -o ckpt" in line:
        shutil.rmtree(workplace / "ckpt")
    with api_server() as api:
        line = line.replace("http://localhost:8000/v1#NAME", api.model)
        completed = execute(["sh", "-ec", line], workplace)
    # Two steps on three titles do not improve nano; `cat` and `mine` count; b.safetensors is a
    # copy.
    reported = (
        "sentkit train: warning: the result is not better than the base on --dev",
        "sentkit train: warning: every scored step is worse than the base on --dev",
        "sentkit train: warning: no scored step is better than the base on --dev",
        "sentkit train: run runs/lr=",
        "sentkit cat: joined",
        "sentkit whiten fit: warning: the vectors of b.safetensors are counted 2 times",
        "sentkit mine: ",
        # most translations of a small model are longer than its limit
        "sentkit translate: warning: ",
        "sentkit diff: warning: ",  # of the included texts, two are blank, and some are long
        "sentkit encode: shard 1/4: no block belongs to it",
        "sentkit encode: 0 of 3 rows were split",
        "sentkit encode: blocks written",
        "sentkit encode: reused rows",
        "sentkit predict: the rows have no vectors",
        "sentkit report: warning: the published values are of other test sets: STS12 (6 rows ",
    )
    messages = [line for line in completed.stderr.splitlines() if not line.startswith(reported)]

    assert (completed.returncode, [line for line in messages if not expected(line)]) == (0, [])


def test_the_recipe_of_a_reranker_runs(workplace, execute):
    """Its scores are those of the orders of similarity and of the reranker's score."""
    recipe = (ROOT / "sentkit/pages/predict.txt").read_text().partition("queries:\n")[2]
    reports = [*map(json.loads, execute(["sh", "-ec", recipe], workplace).stdout.splitlines())]
    completed = execute(["sentkit", "predict", "flat.jsonl", "-m", "CROSSENCODER"], workplace)
    rows = [*map(json.loads, completed.stdout.splitlines())]
    for report, field in zip(reports, ("similarity", "score"), strict=True):
        ordered = sorted(rows, key=lambda row: -row[field])
        hits = [
            [row["id_b"] for row in ordered if row["id_a"] == f"q{n}"] for n in range(len(PAIRS))
        ]
        ranks = [1 + documents.index(f"d{n}") for n, documents in enumerate(hits)]
        assert report["mrr@10"] == pytest.approx(np.mean([100 / rank for rank in ranks]), rel=1e-6)


def test_the_recipe_of_a_server_runs_on_its_answer(workplace, execute):
    """The answer has any order, as `curl` would write it; the vectors are those of another
    readout.
    """
    texts = (workplace / "titles.txt").read_text().splitlines()
    page = (ROOT / "sentkit/pages/diff.txt").read_text().partition("the texts:\n\n  ")[2]
    recipe = re.sub(r"( \\)?\n    ", " ", page.partition("\n\n")[0])
    request, curl, compare = recipe.replace("MODEL", "nano").split("\n  ")
    completed = execute(
        ["sentkit", "encode", "titles.txt", "-m", "nano", "--readout", "cls"], workplace
    )
    vectors = [json.loads(line)["embedding"] for line in completed.stdout.splitlines()]
    items = [
        {"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)
    ]
    answer = {"object": "list", "model": "nano", "data": items[::-1], "usage": {"prompt_tokens": 1}}
    (workplace / "answer.json").write_text(json.dumps(answer))
    assert execute(["sh", "-ec", request], workplace).returncode == 0
    (record,) = map(json.loads, execute(["sh", "-ec", compare], workplace).stdout.splitlines())

    assert curl.startswith("curl -s ")
    assert json.loads((workplace / "request.json").read_text()) == {"model": "nano", "input": texts}
    assert record["vectors"] == len(texts)
    assert record["explanation"]["changes"] == ["readout cls instead of mean"]


def test_the_whitening_example_runs(workplace, execute):
    """A line for the vectors as they were, and one for each of six transforms."""
    command = ["sh", str(ROOT / "examples/whiten.sh"), "nano", "pairs.jsonl", "pairs.jsonl"]
    completed = execute(command, workplace, DIM="3", OUT="kept")
    rows = [json.loads(line) for line in completed.stdout.splitlines()]

    assert completed.returncode == 0, completed.stderr
    assert [Path(row["file"]).stem for row in rows] == [
        "none",
        "center",
        "standardize",
        "abtt",
        "whitening",
        "whiteningdim3",
        "flow",
    ]
    assert len({row["spearman"] for row in rows}) > 3
    assert all(row["against"]["encoder"] == rows[0]["encoder"] for row in rows)


def test_the_gate_example_fails(workplace, execute):
    """Below a floor, or if the new model is worse by more than a margin. Documents run one that
    passes.
    """
    gate = ["sh", str(ROOT / "examples/gate.sh"), str(ROOT / "examples/data/pairs.jsonl")]
    floor, worse, margin = (
        execute([*gate, *words], workplace)
        for words in (
            ("nano", "nano", "100.1"),
            ("nano", "words:binary"),
            ("nano", "words:binary", "", "99"),
        )
    )

    assert (floor.returncode, worse.returncode, margin.returncode) == (1, 1, 0)
    assert "significantly worse" in worse.stderr


def test_the_measured_figures_of_the_systems_are_those_of_the_tables():
    """A deviation of one split beside the figure of another was printed once."""
    measured = [system["measured"] for system in SYSTEMS if "measured" in system]
    with_deviation = re.compile(r"\d+\.\d ± \d\.\d|\d+\.\d\d \(\d\.\d\d\)")
    figures = with_deviation.findall(" ".join(measured))

    assert figures
    assert set(figures) <= set(with_deviation.findall(" ".join(DOCUMENTS.values())))


@pytest.mark.parametrize("paper", OF_PAPERS)
def test_the_readme_of_a_paper_has_every_table_with_its_published_figures(paper):
    rows = {}
    for figure in published():
        if figure["paper"] == paper:
            key = tuple(figure[name] or "" for name in ("table", "base", "system", "readout"))
            rows.setdefault(key, {})[figure["task"]] = figure["value"]
    text = DOCUMENTS[OF_PAPERS[paper]].partition("| table | base |")[2].partition("\n\n")[0]
    printed = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]

    assert {row[0] for row in printed} == {table for table, *_ in rows}
    for *key, figures, _ in printed:
        tasks = rows[tuple(key)]
        values = [tasks["avg"]] if "avg" in tasks else list(tasks.values())
        assert [float(figure_text.split()[-1]) for figure_text in figures.split(", ")] == values


def test_the_figures_of_the_readme_are_those_of_the_other_documents():
    tables = README.partition("## Results")[2].partition("## Guarantees")[0]
    other_texts = " ".join(text for name, text in DOCUMENTS.items() if name != "README.md")
    figures = re.findall(r"\d[\d.,]*\d", tables)

    assert len(figures) > 15
    assert set(figures) <= set(re.findall(r"\d[\d.,]*\d", other_texts))


def test_the_readme_is_short_and_lists_every_command():
    table = README.partition("## Commands")[2].partition("## ")[0]
    names = {name.partition(" ")[0] for name in every_command()}

    assert len(README.splitlines()) <= 185
    assert set(re.findall(r"^\| \w* ?\| `([a-z-]+)`", table, re.MULTILINE)) == names


def test_the_links_of_the_documents_lead_to_files():
    all_links = [
        (name, link)
        for name, text in DOCUMENTS.items()
        for link in re.findall(r"\]\(([^)]+)\)", text)
    ]
    links = [
        link_of_document
        for link_of_document in all_links
        if not link_of_document[1].startswith("https://")
    ]

    assert [
        (name, link) for name, link in links if not (ROOT / name).parent.joinpath(link).is_file()
    ] == []


def inline_commands():
    """The commands in the running text of the documents, and those of the systems."""
    for document in DOCUMENTS.values():
        text = re.sub(r"```.*?```", "", document, flags=re.DOTALL)
        yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", text))
    for system in SYSTEMS:
        yield from system["commands"]


def test_every_command_in_the_text_exists_with_its_flags():
    """Scripts exist; commands, flags, methods, presets and settings are known."""
    lines = [line for line in inline_commands() if re.search("[ /]", line)]
    problems = {}
    for command in sorted(
        {command_text.strip() for line in lines for command_text in line.split("|")}
    ):
        words = shlex.split(command)
        try:
            for path in words:
                assert (
                    not path.startswith(("examples/", "sentkit/", "tests/"))
                    or (ROOT / path).exists()
                )
            if words[0] == "sentkit" and words[1] != "COMMAND":
                check_flags(words[1:])
        except (AssertionError, UsageError) as error:
            problems[command] = error

    assert len(lines) > 300
    assert problems == {}


def check_flags(words):
    command = program()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    assert not hasattr(command, "commands"), f"{words}: not a command"
    flags = [word for word in words if re.match("-+[a-z]", word)]
    assert set(flags) <= {flag for parameter in command.params for flag in parameter.opts}
    if command.name == "train" and words[0] != "METHOD":
        method = load(words[0]).method_class
        values = dict(itertools.pairwise(words))
        settings = [after for before, after in itertools.pairwise(words) if before == "--set"]
        build(method.Settings, method.presets, values.get("--preset"), settings)


def test_the_pictures_show_the_output_of_their_commands(tmp_path, forked_program):
    """After a change of a table: python examples/picture.py"""
    load_script(ROOT / "examples/picture.py").main(tmp_path, forked_program)
    for name in ("session.svg", "result.svg"):
        assert text_of(tmp_path / name) == text_of(ROOT / "examples" / name)
        assert "https://" not in re.sub("<!--.*?-->", "", (tmp_path / name).read_text())


def text_of(picture):
    """The words of a picture, with one decimal of each number."""
    words = [
        element.text
        for element in ElementTree.parse(picture).iter()
        if element.tag.endswith("}text")
    ]
    return [re.sub(r"(\d\.\d)\d+", r"\1", word) for word in words]


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (65, False), (75, True)])
def test_the_job_script_of_train_requeues_a_saved_run(code, requeued, tmp_path):
    """`srun` is a stand-in that exits with the code of train; `scontrol` is one that reports its
    use.
    """
    clusters = HELP["train"].sections["CLUSTERS"]
    script = next(text for text in clusters if text.startswith("#!"))
    write_script(tmp_path / "srun", f"exit {code}")
    write_script(tmp_path / "scontrol", 'echo "$@"')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
    completed = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )

    assert (completed.returncode, completed.stdout) == (code, "requeue 12\n" if requeued else "")


def test_the_job_array_of_a_sweep_makes_the_runs_of_its_table(workplace, execute):
    """Each task of the script runs the command in its line of the list; `srun` is a stand-in."""
    command = ["sentkit", "train", "simcse", "titles.txt", "-m", "SMALL", "--dev", "pairs.jsonl"]
    command += ["--set", "lr=1e-5,3e-5", "--seed", "0,1", "-q", "-o", "a grid"]
    command += ["--batch", "3", "--threads", "1", "--set", "max_length=8"]
    listed = execute([*command, "--list"], workplace)
    (workplace / "runs.txt").write_text(listed.stdout)
    write_script(workplace / "srun", 'exec "$@"')
    script = 'PATH="$PWD:$PATH" sh "$1" runs.txt'
    job = ["sh", "-c", script, "sh", str(ROOT / "examples/slurm/sweep.sbatch")]
    for task in "1234":
        completed = execute(
            job, workplace, SLURM_ARRAY_TASK_ID=task, SLURM_CPUS_PER_TASK="1", SLURM_JOB_ID="1"
        )
        assert completed.returncode == 0, completed.stderr
    table = execute(command, workplace)

    assert listed.stdout.count("\n") == 4
    assert sorted(path.parent.name for path in workplace.glob("a grid/*/seed-1")) == [
        "lr=1e-5",
        "lr=3e-5",
    ]
    assert [json.loads(line)["seeds"] for line in table.stdout.splitlines()] == [[0, 1], [0, 1]]


def test_the_job_array_of_report_fills_the_folder_of_results(workplace, execute):
    """`srun` is a stand-in. The last command adds no result, and has the bytes of a report of its
    own.
    """
    clusters = HELP["report"].sections["CLUSTERS"]
    script = next(text for text in clusters if text.startswith("#!"))
    *_, last_command = clusters[-1].splitlines()
    (workplace / "job.sh").write_text(script)
    write_script(workplace / "srun", 'exec "$@"')
    (workplace / "rows.txt").write_text("nano\nstatic\n")
    for task in ("1", "2"):
        job = ["sh", "-c", 'PATH="$PWD:$PATH" sh job.sh']
        completed = execute(job, workplace, SLURM_ARRAY_TASK_ID=task, SLURM_CPUS_PER_TASK="1")
        assert completed.returncode == 0, completed.stderr
    times = {path: path.stat().st_mtime_ns for path in (workplace / "kept").iterdir()}
    command = [
        "sentkit",
        "report",
        "nano",
        "static",
        "--data",
        "data",
        "--baseline",
        "nano",
        "--intervals",
    ]
    joined = execute([*command, "--results", "kept"], workplace)
    alone = execute(command, workplace)

    assert last_command == "sentkit report grid/*/ --data data --results kept"
    assert len(times) == 2 * len(
        {json.loads(line)["task"] for line in alone.stdout.splitlines()} - {"avg"}
    )
    assert {path: path.stat().st_mtime_ns for path in (workplace / "kept").iterdir()} == times
    assert (joined.returncode, joined.stdout) == (0, alone.stdout)
