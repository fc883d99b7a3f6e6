"""New checkpoint folders: the name in the errors of their files."""

import errno

import pytest

from sentkit.formats.checkpoints.writing import new_folder


@pytest.mark.parametrize(
    ("failed", "named"),
    [("{folder}/0_CNN/model.safetensors", "{output}"), (None, "{output}"), ("/other", "/other")],
)
def test_an_error_of_a_file_in_a_new_folder_has_the_name_of_the_output(tmp_path, failed, named):
    """Not that of the temporary folder. An error of another file keeps its name."""
    output = tmp_path / "out"

    def fill():
        with new_folder(str(output), force=False) as folder:
            path = failed and failed.format(folder=folder)
            raise OSError(28, "No space left on device", path)

    with pytest.raises(OSError, match="No space left on device") as caught:
        fill()

    assert caught.value.filename == named.format(output=output)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError("Can't load the tokenizer"), OSError(errno.EISDIR, "Is a directory")]
)
def test_an_error_that_is_none_of_a_write_stays_as_it_is(tmp_path, error):
    """Of a library, and of a file that is read."""

    def fill():
        with new_folder(tmp_path / "out", force=False):
            raise error

    with pytest.raises(OSError, match=str(error.args[-1])) as caught:
        fill()

    assert caught.value is error
    assert caught.value.filename is None


def test_a_copy_on_a_full_disk_is_an_error_of_the_output(tmp_path):
    """The error of a copy has the name of the file that is read, and of that which is written."""
    output = tmp_path / "out"

    def fill():
        with new_folder(str(output), force=False) as folder:
            written = f"{folder}/a.json"
            raise OSError(errno.ENOSPC, "No space left on device", "base/a.json", None, written)

    with pytest.raises(OSError, match="No space left on device") as caught:
        fill()

    assert caught.value.filename == str(output)
