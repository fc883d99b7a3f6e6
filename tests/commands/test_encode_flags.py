"""The flags of `encode` that change the vectors or report on the texts."""

import numpy as np
import pytest


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, **given):
        return sentkit("encode", "-m", tiny, "--readout", "mean", *arguments, **given)

    return run


def test_numbers_are_cut_before_unit_length(encode, sentkit, tiny):
    """With --normalize, and where the checkpoint asks for unit length itself."""
    expected = encode(stdin="a cat\na dog").vectors()[:, :5].astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    flagged = encode("--dim", 5, "--normalize", stdin="a cat\na dog")
    sentkit("export", "-m", tiny, "--readout", "mean", "--normalize", "-o", "unit")
    declared = sentkit("encode", "-m", "unit", "--dim", 5, stdin="a cat\na dog")

    assert np.abs(flagged.vectors() - expected).max() < 1e-6
    assert np.abs(declared.vectors() - expected).max() < 1e-6
    assert flagged.rows[0]["_emb"].split(":")[1] == declared.rows[0]["_emb"].split(":")[1]


@pytest.mark.parametrize("flags", [(), ("--store", "int8")])
def test_a_dry_run_of_a_vector_folder_predicts_blocks_and_bytes(encode, tmp_path, flags):
    """A row of text has 43 bytes, so that 200 of them are 9 blocks of 1,000 bytes."""
    rows = "a man number {:03} plays a guitar in the park\n"
    (tmp_path / "in.txt").write_text("".join(map(rows.format, range(200))))
    command = ("in.txt", "-o", "D/", "--block-bytes", 1000, *flags)
    [plan] = encode(*command, "-n").rows
    shards = [encode(*command, "-n", "--shard", f"{number}/4").rows[0] for number in range(1, 5)]
    assert [shard["blocks"] for shard in shards] == [2, 2, 2, 3]
    assert sum(shard["rows"] for shard in shards) == plan["rows"] == 200
    assert not (tmp_path / "D").exists()
    encode(*command)
    blocks = list((tmp_path / "D").glob("0*"))

    assert plan["blocks"] == len(blocks) == 9
    data = sum(path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little") for path in blocks)
    assert abs(plan["bytes_estimate"] - data) <= len(blocks) * (8 + 8 + 256 * 4)  # offsets, padding, scales
    assert plan["seconds_estimate"] >= 1
    blocks[0].unlink()
    assert encode(*command, "-n", "--resume").rows[0]["blocks"] == 1


def test_a_dry_run_of_many_rows_tokenizes_a_sample(encode, monkeypatch):
    """Each row has four tokens. Of 300 rows, the first 100 and each tenth of the others are tokenized."""
    monkeypatch.setattr("sentkit.model.encoding_plan.EXACT", 100)
    monkeypatch.setattr("sentkit.model.encoding_plan.EVERY", 10)
    [plan] = encode("-n", stdin="a cat\n" * 300).rows

    counts = {"rows": 300, "texts": 300, "tokens": 1200, "truncated": 0, "sampled_rows": 120}
    assert counts.items() <= plan.items()
    assert plan["memory_estimate"] > 2**20


def test_the_readout_prompt_reads_the_mask(encode, sentkit):
    """Another template is another space; the template's words are not in the row."""
    sentkit("export", "--readout", "prompt", "--template", "[X] is [MASK]", "-o", "nano2")
    one = sentkit("encode", "--readout", "prompt", stdin="a cat")
    two = sentkit("encode", "-m", "nano2", stdin="a cat")

    assert one.code == two.code == 0
    assert one.rows[0]["text"] == "a cat"
    assert one.rows[0]["_emb"].startswith("nano/prompt:")
    assert one.rows[0]["_emb"] != two.rows[0]["_emb"]


@pytest.mark.parametrize(
    ("command", "name"),
    [(("encode",), "prompt"), *((("export", "-o", "o"), name) for name in ("prompt", "template"))],
)
def test_a_text_that_is_not_utf_8_is_wrong_usage(sentkit, tiny, command, name):
    """Python passes such a byte of the command line as a lone surrogate."""
    done = sentkit(*command, "-m", tiny, f"--{name}", "\udcff [X] [MASK]", stdin="a cat")

    assert (done.code, done.told[0]) == (2, f"sentkit {command[0]}: the {name} is not valid UTF-8")
