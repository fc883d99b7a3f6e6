"""`encode`: vectors of other libraries, published scores, spaces, plans, and checkpoints that are
broken.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from sentkit.digits import in_byte_units, in_clock_time
from sentkit.formats.checkpoints.folders import find_model
from sentkit.model.checkpoint_model import CheckpointModel
from support import NANO, in_jsonl, states_of

CLOSE = 1e-5
WEIGHTS = "model.safetensors"
slow = pytest.mark.slow


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, model=tiny, **options):
        return sentkit("encode", "-q", "-m", model, "--readout", "mean", *arguments, **options)

    return run


def test_only_fields_with_values_of_encode_are_removed(encode):
    """Whole numbers `chunk`, `start` and `end`, and two fields or more of --on-truncate mark."""
    own = {"chunk": 3, "start": "10:00", "end": "11:00", "n_tokens": 7, "truncated": "no"}
    of_encode = {"n_tokens": [1, 2], "truncated": [True, False]}
    chunk = {"chunk": 0, "start": 0, "end": 5}
    rows = [{"text": "a cat", **fields} for fields in (own, of_encode, chunk)]
    first = encode(stdin=in_jsonl(*rows)).out
    done = encode("--replace", stdin=first)

    kept = [set(row) - {"text", "_emb", "embedding"} for row in done.rows]
    assert kept == [set(own), set(), set()]


def masked_means(folder, texts, max_length):
    """The mean of each sentence's own tokens, in one padded batch of transformers."""
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, max_length=max_length)
    return np.array([states.mean(0) for states in states_of(folder, tokens["input_ids"])])


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_minilm_has_the_vectors_of_transformers(sentkit, minilm, sentences):
    """The declared pipeline of the real all-MiniLM-L6-v2: mean over the mask, cut at 256, unit
    length.
    """
    folder = str(find_model(minilm))
    expected = unit(masked_means(folder, sentences, 256))
    result = sentkit("encode", "-m", minilm, "--precision", "fp32", stdin="\n".join(sentences))

    assert result.code == 0
    assert np.abs(result.vectors() - expected).max() < CLOSE


def test_nano_has_the_vectors_of_both_libraries(sentkit, sentences, bundled):
    """Of transformers and of sentence-transformers, which load the folder in the wheel as it is."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bundled), device="cpu", model_kwargs={"dtype": torch.float32})
    result = sentkit("encode", "--precision", "fp32", stdin="\n".join(sentences))

    assert np.abs(result.vectors() - masked_means(bundled, sentences, 512)).max() < CLOSE
    assert np.abs(result.vectors() - model.encode(sentences)).max() < CLOSE


@pytest.mark.parametrize("model", [pytest.param("minilm", marks=slow), "bundled"])
def test_a_row_has_the_same_vector_alone_and_in_a_batch(sentkit, sentences, model, request):
    """Beside others, beside a text of 300 words, and in a batch of one."""
    texts = "\n".join([" ".join(sentences)[:1500], *sentences])
    command = ("encode", "-q", "-m", request.getfixturevalue(model), "--precision", "fp32")
    together = sentkit(*command, stdin=texts)
    alone = sentkit(*command, "--batch-tokens", 1, stdin=texts)

    assert np.abs(together.vectors() - alone.vectors()).max() < CLOSE


def test_a_checkpoint_whose_files_disagree_about_the_texts_is_reported(sentkit, tmp_path):
    """The file that sentkit reads is named, and nothing if a flag decides."""
    model = tmp_path / "edited"
    shutil.copytree(NANO, model)
    path = model / "sentence_bert_config.json"
    path.write_text(path.read_text().replace("512", "8"))
    first = sentkit("encode", "-m", model, stdin=b"a cat")
    second = sentkit("encode", "-m", model, "--max-length", "512", stdin=b"a cat")
    settings = json.loads((model / "sentkit.json").read_text())
    named = {"prompts": {"q": "query: ", "d": "d: "}, "default_prompt_name": "q"}
    (model / "sentkit.json").write_text(json.dumps(settings | {"prompts": named["prompts"]}))
    (model / "config_sentence_transformers.json").write_text(json.dumps(named))
    third = sentkit(
        "encode", "-m", model, "--max-length", "512", "--prompt-name", "d", stdin=b"a cat"
    )

    expected = '"max_length" is 512 by sentkit.json, which is used, and 8 by the files of '
    expected += "sentence-transformers"
    assert first.told == [f"sentkit encode: warning: {model}: {expected}"]
    assert (second.told, second.out) == ([], first.out)
    assert third.told == []


def test_bf16_stays_near_fp32(sentkit, sts):
    """The lowest cosine on nano, of vectors as they are and centred by the mean of fp32; in one
    space.
    """
    lines = (sts / "stsb.dev.jsonl").read_bytes().splitlines(keepends=True)[::15]
    vectors = {}
    spaces = set()
    for precision in ("fp32", "bf16"):
        result = sentkit("encode", "--precision", precision, stdin=b"".join(lines))
        sides = [result.vectors("embedding_a"), result.vectors("embedding_b")]
        vectors[precision] = np.concatenate(sides).astype(np.float64)
        spaces.add(result.rows[0]["_emb"])

    for centre in (0, vectors["fp32"].mean(0)):
        exact = unit(vectors["fp32"] - centre)
        rounded = unit(vectors["bf16"] - centre)
        assert (exact * rounded).sum(1).min() >= 0.9998
    assert len(spaces) == 1


@pytest.fixture
def potion(sts):
    folder = sts.parent.parent / "checkpoints/potion-base-4M-int8"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return folder


@pytest.mark.parametrize(
    ("model", "name", "measure", "value", "near"),
    [
        ("nano", "stsb.test", "spearman", 80.68, 0.05),
        pytest.param("nano", "stsb.dev", "spearman", 85.63, 0.05, marks=slow),
        pytest.param("nano", "sickr.test", "spearman", 76.83, 0.05, marks=slow),
        pytest.param("minilm", "stsb.test", "spearman", 82.03, 0.005, marks=slow),
        pytest.param("minilm", "stsb.test", "pearson", 82.74, 0.005, marks=slow),
        pytest.param("minilm", "stsb.dev", "spearman", 86.72, 0.005, marks=slow),
        pytest.param("minilm", "sickr.test", "spearman", 77.15, 0.005, marks=slow),
        ("potion", "stsb.test", "spearman", 74.3, 0.05),
        ("potion", "sickr.test", "spearman", 63.8, 0.05),
        # The baseline of SemEval 2017 (arXiv 1708.00055) does not say how it cuts a text into
        # words.
        ("words:binary", "sts17_track5_enen.test", "pearson", 72.78, 0.15),
        ("words:binary", "sts17_track1_arar.test", "pearson", 60.45, 0.15),
    ],
)
def test_published_scores_are_reached(sentkit, request, sts, model, name, measure, value, near):
    folder = request.getfixturevalue(model) if model in ("minilm", "potion") else model
    flags = ("--precision", "fp32") if model in ("nano", "minilm") else ()
    encoded = sentkit("encode", "-m", folder, *flags, "--vectors", "base64", sts / f"{name}.jsonl")
    result = sentkit("score", "--gold", "score", stdin=encoded.out)

    assert (encoded.err, result.err) == ("", "")
    assert result.rows[0][measure] == pytest.approx(value, abs=near)


def test_numbers_are_cut_before_unit_length(encode, sentkit, tiny):
    """With --normalize, and where the checkpoint asks for unit length itself."""
    vectors = encode(stdin="a cat\na dog").vectors()
    expected = unit(vectors[:, :5].astype(np.float64))
    flagged = encode("--dim", 5, "--normalize", stdin="a cat\na dog")
    sentkit("export", "-m", tiny, "--readout", "mean", "--normalize", "-o", "unit")
    declared = sentkit("encode", "-m", "unit", "--dim", 5, stdin="a cat\na dog")

    for result in (flagged, declared):
        assert np.abs(result.vectors() - expected).max() < 1e-6
    assert flagged.rows[0]["_emb"].split(":")[1] == declared.rows[0]["_emb"].split(":")[1]


def test_the_space_is_of_what_changes_the_vectors(sentkit, tiny, other, copy_of):
    """Weights, attention heads, readout, steps; not the prefix, the length, the batches."""
    heads = copy_of(tiny, "heads")
    config = json.loads((heads / "config.json").read_text())
    (heads / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))

    def space(*flags, model=tiny):
        [row] = sentkit("encode", "-q", "-m", model, *flags, stdin="a cat").rows
        return row["_emb"].partition(":")[2]

    same = {
        space(*flags)
        for flags in ((), ("--prompt", "x "), ("--max-length", 9), ("--batch-tokens", 7))
    }
    changed = (("--readout", "cls"), ("--readout", "pooler"), ("--normalize",), ("--dim", 4))
    other_spaces = {space(model=model) for model in (other, heads)}
    other_spaces |= {space(*flags) for flags in changed}

    assert same == {space("--readout", "mean")}
    assert len(same | other_spaces) == 7


def test_a_sweep_writes_the_files_of_separate_runs(encode, sentkit, tmp_path, sentences):
    """Twelve files of four layers and three readouts: the same rows, numbers and space as one by
    one.
    """
    texts = sentences[::9]
    exact = ("--precision", "fp32")
    encode(*exact, "--readout", "L*:cls,L*:mean,L*:max", "-o", "sweep", stdin="\n".join(texts))
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir())

    poolings = ("cls", "max", "mean")
    assert names == [f"L0{k}-{pooling}.safetensors" for k in range(4) for pooling in poolings]
    for name in names:
        swept = sentkit("cat", f"sweep/{name}")
        readout = f"L{name[2]}:{name[4:].partition('.')[0]}"
        single = encode(*exact, "--readout", readout, stdin="\n".join(texts))
        assert [row["text"] for row in swept.rows] == texts
        assert swept.rows[0]["_emb"] == single.rows[0]["_emb"]
        assert np.abs(swept.vectors() - single.vectors()).max() < CLOSE


def test_wk_and_its_windows_are_different_spaces(sentkit):
    """The order of the layers changes neither label nor vectors."""
    readouts = [
        "L0+L1+L2+L3+L4:wk",
        "L4+L3+L2+L1+L0:wk",
        "L0+L1+L2+L3+L4:wk-clip",
        "L0+L1+L2+L3+L4:mean",
    ]
    texts = "a cat\nthe dog runs home"
    results = [sentkit("encode", "--readout", readout, stdin=texts) for readout in readouts]
    spaces = [result.rows[0]["_emb"].rsplit(":", 1) for result in results]
    labels = [label for label, _ in spaces]
    hashes = {digest for _, digest in spaces}

    assert results[0].out == results[1].out
    assert labels[::2] == ["nano/L0+L1+L2+L3+L4:wk", "nano/L0+L1+L2+L3+L4:wk-clip"]
    assert len(hashes) == 3
    assert np.abs(results[0].vectors() - results[2].vectors()).max() > 1e-4


@pytest.mark.parametrize("flags", [(), ("--store", "int8")])
def test_a_dry_run_of_a_vector_folder_predicts_blocks_and_bytes(encode, tmp_path, flags):
    """A row of text has 43 bytes, so that 200 of them are 9 blocks of 1,000 bytes."""
    rows = [f"a man number {n:03} plays a guitar in the park\n" for n in range(200)]
    (tmp_path / "in.txt").write_text("".join(rows))
    command = ("in.txt", "-o", "D/", "--block-bytes", 1000, *flags)
    [plan] = encode(*command, "-n").rows
    shards = [encode(*command, "-n", "--shard", f"{number}/4").rows[0] for number in range(1, 5)]
    assert [shard["blocks"] for shard in shards] == [2, 2, 2, 3]
    assert sum(shard["rows"] for shard in shards) == plan["rows"] == 200
    assert not (tmp_path / "D").exists()
    encode(*command)
    blocks = list((tmp_path / "D").glob("0*"))

    assert plan["blocks"] == len(blocks) == 9
    data = sum(
        path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little") for path in blocks
    )
    # offsets, padding, scales
    assert abs(plan["bytes_estimate"] - data) <= len(blocks) * (8 + 8 + 256 * 4)
    blocks[0].unlink()
    assert encode(*command, "-n", "--resume").rows[0]["blocks"] == 1


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz"])
def test_a_dry_run_of_a_shard_without_blocks_says_so(sentkit, tmp_path, name):
    """A row of text has 43 bytes, so that 200 of them are 9 blocks of 1,000 bytes.

    A compressed file has blocks of 1,000 / 64 = 15 rows: 200 rows are 14.
    """
    content = "".join(
        f"a man number {n:03} plays a guitar in the park\n" for n in range(200)
    ).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    command = ("encode", name, "-n", "-m", "static", "-o", "D/", "--block-bytes", 1000)
    blocks = 14 if name.endswith("gz") else 9
    result = sentkit(*command, "--shard", "90/100")

    assert {"rows": 0, "tokens": 0, "blocks": 0, "all_blocks": blocks}.items() <= result.rows[
        0
    ].items()
    assert f"{100 - blocks} of 100 shards have no block: there are {blocks}" in result.err
    assert f"use --shard I/{blocks}, or smaller --block-bytes" in result.err
    one_more = sentkit(*command, "--shard", f"1/{blocks + 1}")
    assert f"1 of {blocks + 1} shards has no block" in one_more.err
    assert one_more.rows[0]["blocks"] == 1
    enough = sentkit(*command, "--shard", f"{blocks}/{blocks}")
    assert "no block" not in enough.err
    assert enough.rows[0].items() >= {"blocks": 1, "all_blocks": blocks}.items()


def test_a_dry_run_of_an_input_without_rows_is_an_error(encode, tmp_path):
    (tmp_path / "in.txt").write_text("")
    result = encode("in.txt", "-n", "-o", "D/")

    assert (result.code, result.err.splitlines()[-1]) == (65, "sentkit encode: no rows in in.txt")


def test_a_dry_run_has_units_of_people_on_a_terminal(on_terminal, sentkit, tmp_path):
    (tmp_path / "in.txt").write_text("a cat\na dog\n")
    plan = sentkit("encode", "in.txt", "-n", "-o", "v.safetensors").rows[0]
    shown = dict(
        re.split("  +", line) for line in on_terminal("encode", "in.txt", "-n", "-o", "folder/")
    )
    in_folder = sentkit("encode", "in.txt", "-n", "-o", "folder/").rows[0]

    assert {name: type(plan[name]) for name in plan if name.endswith("estimate")} == dict.fromkeys(
        ("bytes_estimate", "seconds_estimate", "memory_estimate"), int
    )
    assert shown["disk"] == in_byte_units(in_folder["bytes_estimate"])
    assert re.fullmatch(r"\d+:\d\d", shown["time"])
    assert re.fullmatch(r"\d+ MB", shown["memory"])
    assert (shown["rows"], shown["blocks to write"], shown["blocks (useful tasks)"]) == (
        "2",
        "1",
        "1",
    )
    assert not [name for name in shown if "_" in name]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        *((0, "0 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (146_813_762, "147 MB")),
        *((1_468_137_620, "1.47 GB"), (14_681_376_200, "14.7 GB"), (999_499_999, "999 MB")),
        *(
            (999_500_000, "1.00 GB"),
            (9_994_999, "9.99 MB"),
            (9_995_000, "10.0 MB"),
            (10**18, "1,000 PB"),
        ),
    ],
)
def test_bytes_have_three_digits_for_people(count, shown):
    assert in_byte_units(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(9, "0:09"), (279, "4:39"), (3599.4, "59:59"), (3723, "1:02:03"), (360_000, "100:00:00")],
)
def test_durations_have_minutes_for_people(seconds, shown):
    assert in_clock_time(seconds) == shown


@pytest.mark.parametrize(
    ("model", "rows"), [pytest.param("nano", 700, marks=pytest.mark.slow), ("static", 9000)]
)
def test_a_dry_run_estimates_the_memory_of_the_run(tmp_path, model, rows):
    """In processes of their own: not below the use, and at most 1.4 times it.

    One thread: how far the batches of several threads overlap depends on the machine.
    """
    words = (
        "a man plays a guitar in the park",
        "the old woman sings",
        "two dogs run along the river by night",
    )
    lines = [f"{words[n % 3]} {n} and {' '.join(words[: n % 4])}\n" for n in range(rows)]
    (tmp_path / "in.txt").write_text("".join(lines))

    def run(*flags):
        command = [
            sys.executable,
            "-m",
            "sentkit",
            "encode",
            "in.txt",
            "-q",
            "-m",
            model,
            "--threads",
            "1",
        ]
        with (tmp_path / "out").open("wb") as out:
            process = subprocess.Popen(
                [*command, "-o", "v.safetensors", *flags], cwd=tmp_path, stdout=out
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0
        return usage.ru_maxrss * 1024

    run("-n")
    estimate = json.loads((tmp_path / "out").read_text())["memory_estimate"]
    used = run()

    assert used <= estimate <= 1.4 * used


def test_a_dry_run_of_many_rows_tokenizes_a_sample(encode, monkeypatch):
    """Each row has four tokens. Of 300 rows, the first 100 and each tenth of the others are
    tokenized.
    """
    monkeypatch.setattr("sentkit.model.runs.plan.EXACT", 100)
    monkeypatch.setattr("sentkit.model.runs.plan.EVERY", 10)
    [plan] = encode("-n", stdin="a cat\n" * 300).rows

    assert {"rows": 300, "texts": 300, "tokens": 1200, "sampled_rows": 120}.items() <= plan.items()


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("in.jsonl", "out.jsonl"),
        ("in.safetensors", "out/"),
        ("in/", "out.safetensors"),
        ("in/", "out/"),
    ],
)
def test_rows_of_chunks_become_rows_of_texts(encode, sentkit, name, output):
    """Their vectors are those of whole texts, so they have no place in the text."""
    row = in_jsonl({"text": "a cat and a dog and a bird and a fish", "id": 1})
    assert encode("--window", 8, "--on-truncate", "chunks", "-o", name, stdin=row).code == 0
    chunks = sentkit("cat", name.rstrip("/")).rows
    assert {"chunk", "start", "end"} < set(chunks[0])

    assert encode(name.rstrip("/"), "--replace", "-o", output).code == 0
    rows = sentkit("cat", output.rstrip("/")).rows
    assert [set(row) for row in rows] == [{"text", "id", "_emb", "embedding"}] * len(chunks)
    assert all(row["embedding"] == rows[0]["embedding"] for row in rows)


def spoil_tokenizer(folder):
    """More word pieces than there are weights for."""
    arrays = load_file(folder / WEIGHTS)
    config = json.loads((folder / "config.json").read_text())
    words = "embeddings.word_embeddings.weight"
    save_file({**arrays, words: arrays[words][:200]}, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))


def remove_tokenizer(folder):
    for path in (*folder.glob("tokenizer*"), folder / "vocab.txt"):
        path.unlink()


def make_module(folder):
    """Like 1_Pooling: transformers reports with several lines that there is no tokenizer."""
    remove_tokenizer(folder)
    (folder / "config.json").write_text('{"word_embedding_dimension":32}')


@pytest.mark.parametrize(
    ("spoil", "code", "problem"),
    [
        (
            lambda folder: (folder / WEIGHTS).unlink(),
            66,
            "has no model.safetensors and no pytorch_model.bin",
        ),
        (remove_tokenizer, 65, "copy: no tokenizer in this folder$"),
        (make_module, 65, "copy: no tokenizer in this folder$"),
        (spoil_tokenizer, 65, "do not match: token id [0-9]+, but the model has 200 tokens$"),
        (("config.json", "{"), 65, "config.json:1: not JSON"),
        (("config.json", "[]"), 65, "config.json: expected a JSON object"),
        (
            ("config.json", '{"model_type":"bert","vocab_size":"many"}'),
            65,
            "\"vocab_size\" cannot be 'many'",
        ),
        (("sentkit.json", '{"readout":"median"}'), 65, 'sentkit.json: unknown readout "median"'),
        ((WEIGHTS, "short"), 65, "not a safetensors file, or incomplete"),
    ],
)
def test_what_is_broken_in_a_checkpoint_is_named(
    encode, sentkit, copy_of, tiny, spoil, code, problem
):
    """One line and at most one of advice, no traceback."""
    folder = copy_of(tiny)
    if isinstance(spoil, tuple):
        (folder / spoil[0]).write_text(spoil[1])
    else:
        spoil(folder)
    result = sentkit("encode", "-q", "-m", folder, stdin="a cat")

    assert (result.code, result.out) == (code, b"")
    assert re.search(problem, result.told[0])
    assert len(result.told) <= 2


@pytest.mark.parametrize("name", ["out.jsonl", "out.safetensors", "-"])
def test_vectors_of_broken_weights_are_refused(encode, copy_of, tiny, name):
    """65 with the row, and no `null` or NaN in any output."""
    folder = copy_of(tiny)
    arrays = load_file(folder / WEIGHTS)
    arrays["embeddings.word_embeddings.weight"][2000:] = np.nan
    save_file(arrays, folder / WEIGHTS, {"format": "pt"})
    result = encode("-o", name, model=folder, stdin="!\na cat\n")

    assert (result.code, b"null" in result.out, Path(name).exists()) == (65, False, False)
    assert result.err == "sentkit encode: -:2: a vector contains NaN or infinity\n"


@pytest.mark.parametrize(
    "command", ["encode --prompt", "export -o o --prompt", "export -o o --template"]
)
def test_a_text_that_is_not_utf_8_is_wrong_usage(sentkit, tiny, command):
    """Python passes such a byte of the command line as a lone surrogate."""
    words = command.split()
    result = sentkit(*words[:-1], "-m", tiny, f"{words[-1]}=\udcff [X] [MASK]", stdin="a cat")

    problem = f"sentkit {words[0]}: the {words[-1].removeprefix('--')} is not valid UTF-8"
    assert (result.code, result.told[0]) == (2, problem)


WORDS = "the 1 0 0\ncat 0 2 0\n. 0 0 3\ndog -1 -1 -1\n"


def test_an_array_of_word_vectors_is_the_same_space(sentkit):
    """Also one in which a word is repeated; the words are in the text file beside it, which is an
    input.
    """
    lines = [line.split() for line in WORDS.splitlines()]
    names = [name for name, *_ in lines]
    rows = np.array([[float(number) for number in numbers] for _, *numbers in lines])
    Path("words.txt").write_text(WORDS)
    np.save("a.npy", rows)
    Path("a.txt").write_text("\n".join(names))
    np.save("b.npy", np.asfortranarray(np.vstack([rows, rows[:1] + 1])))
    Path("b.txt").write_text("\n".join([*names, "the"]))
    encoded = [
        sentkit("encode", "-m", name, "-q", stdin="a cat\nthe Dog.")
        for name in ("words.txt", "a.npy", "b.npy")
    ]

    for result in encoded:  # (the + dog + .) / 3
        assert result.vectors() == pytest.approx(np.array([[0, 2, 0], [0, -1 / 3, 2 / 3]]))
    assert len({result.rows[0]["_emb"].partition(":")[2] for result in encoded}) == 1
    for output in ("a.npy", "a.txt"):
        result = sentkit("encode", "-m", "a.npy", "-f", "--rejects", f"./{output}", stdin="cat")
        problem = f"sentkit encode: --rejects ./{output}: would overwrite the input {output}"
        assert (result.code, result.told[0]) == (2, problem)


def test_unreadable_words_of_a_table_and_tokens_of_model2vec_are_counted(sentkit, model2vec):
    Path("words.txt").write_bytes(b"cat 1 0\ncat 0 1\n\xff 1 1\ncat 5 5\n")

    assert sentkit("encode", "-m", "words.txt", stdin="cat\n").told == [
        "sentkit encode: warning: words.txt: 2 repeated words: the first vector of each is used",
        "sentkit encode: warning: words.txt: 1 words that are not UTF-8 are ignored",
    ]
    assert sentkit("encode", "-m", model2vec(), stdin="the zebra\nzebra\n").told == [
        "sentkit encode: warning: 2 of 3 tokens have no vector",
        "sentkit encode: warning: 1 of 2 texts have no known token: their vectors are zero",
    ]


@pytest.mark.parametrize(
    ("flags", "row", "name"),
    [
        ([], {"text": "a cat", "embedding": 1}, "embedding"),
        ([], {"text": "a cat", "embedding_a": 1}, "embedding_a"),
        (["--field", "text=embedding"], {"embedding": "a cat"}, "embedding"),
        (["--on-truncate", "mark"], {"text": "a cat", "truncated": 1}, "truncated"),
        (["--on-truncate", "chunks"], {"text": "a cat", "start": 1}, "start"),
        (["-n"], {"text": "a cat", "_emb": "m"}, "_emb"),
    ],
)
def test_a_field_that_encode_adds_is_refused_before_the_weights_are_read(
    encode, monkeypatch, flags, row, name
):
    """A dry run refuses it, too: it says whether the run is possible."""
    with monkeypatch.context() as patch:
        if "-n" not in flags:  # which measures
            patch.setattr(CheckpointModel, "encoder", None)
        refused = encode(*flags, stdin=in_jsonl(row))
    replaced = encode(*flags, "--replace", stdin=in_jsonl(row))

    assert refused.code == 65
    assert refused.told[0] == f'sentkit encode: -:1: field "{name}" already exists'
    assert replaced.code == 0


def test_a_name_of_a_vector_is_no_name_for_another_field(sentkit):
    for name in ("embedding", "embedding_a", "_emb"):
        result = sentkit("cat", "--name-field", name, stdin="a cat\n")
        assert (result.code, f"--name-field {name}: " in result.err) == (2, True)


def test_the_file_of_the_weights_is_no_model(encode, tiny):
    """The advice names its folder."""
    folder = Path(tiny)
    refused = encode(model=folder / "model.safetensors", stdin="a cat")
    encode("-o", "v.safetensors", stdin="a cat")
    vectors = encode(model="v.safetensors", stdin="a cat")

    problem = "is a safetensors file, expected a model"
    assert (refused.code, vectors.code) == (66, 66)
    assert refused.told[0] == f"sentkit encode: {folder}/model.safetensors: {problem}"
    assert refused.told[1] == f"  name the folder of the checkpoint: {folder}"
    assert vectors.told[1] == "  name the folder of a checkpoint, which has config.json"


def test_the_name_of_a_file_does_not_replace_a_field(sentkit):
    done = sentkit("cat", "--name-field", "k", stdin=in_jsonl({"text": "x", "k": 1}))

    assert (done.code, done.told[0][-24:], done.told[1]) == (
        65,
        'field "k" already exists',
        "  use another --name-field",
    )
