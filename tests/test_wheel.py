"""The wheel and the source distribution: what a user installs, without the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from support import ROOT

pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder with a wheel and a source distribution of the tracked files."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """A virtual environment with the wheel. Its other packages are those of this Python."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin/python"
    [wheel] = distributions.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    install += ["--no-index", "--quiet", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # The path of a folder, so that its own .pth files, such as that of the checkout, do not count.
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.fixture
def run(installed, tmp_path):
    """Run a command in an empty folder, as a user of the wheel."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{installed}/bin:{environment['PATH']}"

    def run_in_shell(command):
        return subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_in_shell


def test_the_installed_program_runs_the_first_pipe(run, installed):
    result = run("printf 'a cat\\na dog\\n' | sentkit encode | sentkit score")
    imported = run("python -c 'import sentkit; print(sentkit.__file__)'")

    assert result.returncode == 0, result.stderr
    assert re.match(r'{"text_a":"a cat","text_b":"a dog",.*"similarity":0\.', result.stdout)
    assert imported.stdout.startswith(str(installed))


def test_the_installed_program_has_tables_and_completion(run):
    published = run("sentkit report --paper sg-bert | head -n 3")
    completion = run("sentkit --show-completion bash")

    assert published.returncode == 0, published.stderr
    assert published.stdout.count('"paper":"sg-bert"') == 3
    assert "_SENTKIT_COMPLETE" in completion.stdout


@pytest.mark.skipif(not shutil.which("man"), reason="there is no man here")
def test_man_finds_the_installed_pages(run):
    """It searches the folder share/man beside a folder bin of PATH."""
    result = run("man -w sentkit sentkit-encode 3 sentkit-encoder 7 sentkit-methods")

    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 4


def test_the_distributions_have_the_files_of_users(distributions):
    [wheel] = distributions.glob("*.whl")
    [source] = distributions.glob("*.tar.gz")
    in_wheel = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(source) as archive:
        in_source = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}

    for name in ("sentkit/nano/model.safetensors", "sentkit/static/tokenizer.json"):
        assert name in in_wheel
    assert not [name for name in in_wheel if name.startswith(("tests/", "examples/"))]
    for name in ("examples/first.sh", "tests/run.sh", "man/man1/sentkit.1", "CHANGELOG.md"):
        assert name in in_source
