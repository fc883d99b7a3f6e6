"""examples/evidence.py: the commands and dates of the measured tables."""

import os
import subprocess
import sys

import pytest

from support import ROOT, load_script

evidence = load_script(ROOT / "examples/evidence.py")
BENCHMARKS = "tests/benchmarks/README.md"
TABLE = "| | dev | test |\n|---|---|---|\n| base | 50.1 | {figure} |\n\n"
LINE = "Measured on 2026-11-20 with one thread\nof a CPU: `sentkit report base\n--data DATA`.\n\n"


def test_a_table_has_the_date_and_the_command_of_the_paragraph_that_follows():
    """A table without one has no date, also if another table has one; a table of words has none."""
    words = "| option | purpose |\n|---|---|\n| a | one |\n\n"
    text = words + TABLE.format(figure="40.2 ± 0.3") + TABLE.format(figure="**41.0**") + LINE
    undated, dated = evidence.measured_tables("README.md", text)
    assert (undated.line, undated.date) == (5, "")
    assert (dated.line, dated.date) == (9, "2026-11-20")
    assert dated.machine == "with one thread of a CPU"
    assert dated.command == "sentkit report base --data DATA"
    mostly_words = "| | speed |\n|---|---|\n| a | OpenVINO: 12 |\n\n"
    assert len([*evidence.measured_tables("README.md", mostly_words + LINE)]) == 1


def test_changes_are_the_commits_after_the_day(tmp_path, monkeypatch):
    def git(*words, date="2026-11-20T12:00:00"):
        command = ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e", *words]
        environment = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date, "HOME": str(tmp_path)}
        subprocess.run(command, check=True, env=environment, capture_output=True)

    git("init", "-q")
    (tmp_path / "sentkit/reports").mkdir(parents=True)
    for number, date in enumerate(("2026-11-19", "2026-11-20", "2026-11-21", "2026-11-23")):
        (tmp_path / "sentkit/reports/tables.py").write_text(str(number))
        (tmp_path / "unrelated.py").write_text(str(number))
        git("add", ".")
        git("commit", "-q", "-m", "change", date=f"{date}T12:00:00")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    command = "sentkit report base"
    table = evidence.MeasuredTable("README.md", 1, "2026-11-20", "a CPU", command)
    assert evidence.changes_since(table) == 2
    assert evidence.said(2) == "2 changes"
    other = evidence.MeasuredTable("README.md", 1, "2026-11-20", "a CPU", "other-program x")
    assert evidence.said(evidence.changes_since(other)) == "unknown code"
    table = evidence.MeasuredTable("README.md", 1, "2026-11-23", "a CPU", command)
    assert evidence.said(evidence.changes_since(table)) == "current"


def test_a_table_can_have_a_date_without_a_script():
    """Lines between a table and its date are not those of the next table or section."""
    without = LINE.replace(": `sentkit report base\n--data DATA`.", ", without a script.")
    table = TABLE.format(figure="40.2")
    text = f"{table}Texts.\n\n{without}{table}# B\n\n{LINE}"
    first, second = evidence.measured_tables("README.md", text)

    assert (first.date, first.machine) == ("2026-11-20", "with one thread of a CPU")
    assert (first.command, second.date) == ("", "")


@pytest.mark.parametrize("document", evidence.DOCUMENTS)
def test_every_measured_table_has_a_date_and_a_known_command(document):
    tables = list(evidence.measured_tables(document, (ROOT / document).read_text()))
    assert tables
    for table in tables:
        assert table.date, f"{document}:{table.line} has no paragraph with a date"
        assert (document == BENCHMARKS and not table.command) or any(
            name in evidence.CODE
            for name in map(lambda word: word.rpartition("/")[2], table.command.split())
        ), table.command


def test_missing_documents_and_tables_without_a_date_are_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    for words, code in ((["none.md"], 66), (["bare.md"], 1)):
        (tmp_path / "bare.md").write_text(TABLE.format(figure="40.2"))
        monkeypatch.setattr(sys, "argv", ["evidence.py", *words])
        with pytest.raises(SystemExit) as ended:
            evidence.main()
        assert ended.value.code == code
    assert "no date" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error():
    """As of `| head -1`: the reader is gone before the first table is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, ROOT / "examples/evidence.py"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")
