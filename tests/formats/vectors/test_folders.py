"""The blocks of a vector folder."""

from pathlib import Path

import orjson

from sentkit.formats.vectors.folders import FORMAT, RUN, VERSION, VectorFolder


def test_a_folder_can_have_more_than_a_hundred_thousand_inputs(tmp_path: Path) -> None:
    record = dict.fromkeys(("name", "path", "format", "head", "tail"), "")
    inputs = [{**record, "grid": "bytes", "size": 30}] * 100_001
    run = {"format": FORMAT, "version": VERSION, "block_bytes": 20, "inputs": inputs}
    (tmp_path / RUN).write_bytes(orjson.dumps(run))
    last = ["100000-000000000000.safetensors", "100000-000000000020.safetensors"]
    for name in last:
        (tmp_path / name).touch()
    folder = VectorFolder(str(tmp_path))
    status = folder.status()

    assert status.done == last
    assert len(status.missing) == 200_000
    assert [folder.block_named(name).index for name in last] == [200_000, 200_001]
    assert folder.block_named(last[1]).start == 20
