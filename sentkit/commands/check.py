"""`sentkit check`: the state of a vector folder, or of a vector file."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sentkit.console import Console, TaskProgress
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rules import is_given, needs

if TYPE_CHECKING:
    from sentkit.formats.vectors.folder_check import Problem


def check(
    *,
    path: Annotated[
        str,
        Argument(metavar="PATH", help="A vector folder (from encode -o DIR/) or file."),
    ],
    shards: Annotated[
        int | None,
        Option(
            "--shards", metavar="N", min=1, help="Also list the shards of N with missing blocks."
        ),
    ] = None,
    deep: Annotated[
        bool,
        Option("--deep", help="Read all blocks and inputs, and compare their digests."),
    ] = False,
    remove: Annotated[
        bool,
        Option("--remove", help="Remove damaged blocks, which encode --resume writes again."),
    ] = False,
    json: options.Json = False,
    console: Console,
) -> None:
    """Find missing blocks of a vector folder, or damage of a file."""
    from sentkit.formats.files import is_input_file

    needs({"--remove": remove}, {"--deep": deep})
    if is_input_file(path):
        for flag, value in {"--remove": remove, "--shards": shards}.items():
            if is_given(value):
                raise UsageError(f"{flag} needs a vector folder, {path} is a file")
        check_file(path, as_table=Output().on_terminal and not json)
    else:
        check_folder(path, shards, console, deep=deep, remove=remove, json=json)


def check_file(path: str, *, as_table: bool) -> None:
    from sentkit.formats.files import is_safetensors, refuse_compressed_vectors, shown_path
    from sentkit.formats.vectors.vector_file import VectorFile

    refuse_compressed_vectors(path)
    if not is_safetensors(path):
        raise UsageError(f"{path}: expected a vector folder, or a vector file (.safetensors)")
    file = VectorFile(path)
    damage = file.damage()
    problems = [] if damage is None else [damage]
    record = {"file": shown_path(path), "rows": file.count, "problems": problems}
    Output().write_record(record, as_table=as_table)
    if damage is None:
        return
    advice = None
    if "digest" not in file.header.metadata:
        advice = "sentkit cat FILE -o NEW.safetensors adds a digest"
    raise AnswerIsNo(f"{path}: {damage}", advice=advice)


def check_folder(
    path: str, shards: int | None, console: Console, *, deep: bool, remove: bool, json: bool
) -> None:
    """Print the counts of a folder. The exit code is 1 if blocks are damaged, missing, or
    of unknown number.
    """
    from sentkit.formats.files import shown_path
    from sentkit.formats.vectors.folder_check import (
        counts_of,
        problems_of_blocks,
        problems_of_inputs,
        problems_outside,
    )
    from sentkit.formats.vectors.folders import open_folder

    folder = open_folder(path)
    status = folder.status(accepts_damage=deep)

    # The problems of the inputs, and those of the blocks by name.
    problems: list[Problem] = []
    problem_of_block: dict[str, Problem] = {}
    if deep:
        progress = TaskProgress(console, "blocks")
        progress.begin(len(status.complete_blocks))
        digests: dict[str, str] = {}
        problems += problems_of_inputs(folder, digests)
        for block_name, problem in problems_of_blocks(folder, status, digests):
            if problem is not None:
                problem_of_block[block_name] = problem
            progress.add(1)
        problems += problem_of_block.values()
        problems += problems_outside(folder, status)

    # Damaged blocks are missing ones, of which --remove also removes the files.
    damaged = [problem for problem in problems if problem.kind == "damaged block"]
    if remove:
        for problem in damaged:
            Path(problem.path).unlink(missing_ok=True)
    is_incomplete = bool(damaged) or not status.is_complete
    for block_name, problem in problem_of_block.items():
        if problem.kind == "damaged block":
            status.missing_blocks.append(status.complete_blocks.pop(block_name))

    counts = counts_of(folder, status, shards)
    record: dict[str, Any] = {"folder": shown_path(path), **counts}
    if deep:
        record["problems"] = [shown_path(problem.message) for problem in problems]
    if remove:
        record["removed"] = len(damaged)
    output = Output()
    output.write_record(record, as_table=output.on_terminal and not json)

    if problems:
        advice = advice_on(problems, path, removed=remove, is_incomplete=is_incomplete)
        raise AnswerIsNo(problems[0].message, advice=advice)
    if status.length_is_unknown:
        message = f"{path}: {counts['blocks']} blocks are complete, others are missing"
        raise AnswerIsNo(message, advice="their number is unknown until the last one exists")
    missing = counts["missing"]
    if missing:
        raise AnswerIsNo(f"{path}: {missing} of {counts['blocks'] + missing} blocks are missing")


def advice_on(
    problems: "Sequence[Problem]", path: str, *, removed: bool, is_incomplete: bool
) -> str:
    """What to do about the inputs and the blocks of the folder at `path`. `removed`: its damaged
    blocks were removed. `is_incomplete`: blocks are missing or damaged.
    """
    from sentkit.formats.files import text_of_paths

    folder = quote(path.rstrip("/"))
    unreadable = [problem.path for problem in problems if problem.kind == "unreadable input"]
    damaged = [problem for problem in problems if problem.kind == "damaged block"]
    has_changed = len(unreadable) + len(damaged) < len(problems)
    steps: list[str] = []
    if not damaged:
        steps.append("no block is damaged")
    if unreadable:
        steps.append(f"restore {text_of_paths(unreadable)}")
    if removed and damaged:
        steps.append(f"removed blocks: {len(damaged)}")
    elif damaged:
        steps.append(f"sentkit check {folder} --deep --remove removes damaged blocks")

    # --resume refuses a changed input, and --reuse a folder with missing blocks.
    reuse = f"for a changed input: sentkit encode -o NEW/ --reuse {folder}"
    if is_incomplete:
        join = f"sentkit cat {folder}/*.safetensors -o OLD.safetensors"
        reuse = f"for a changed input: {join} && sentkit encode -o NEW/ --reuse OLD.safetensors"
    if has_changed:
        steps.append(reuse)
    elif damaged:
        steps.append("encode --resume writes them again")
    return "; ".join(steps)
