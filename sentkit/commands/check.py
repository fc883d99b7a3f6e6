"""`sentkit check`: the state of a vector folder, or of a vector file."""

from collections import defaultdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from typer import Argument, Option

from sentkit.console import Console, TaskProgress
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rules import is_given, needs


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
    from sentkit.formats.files import is_safetensors, refuse_compressed, shown_path
    from sentkit.formats.vectors.vector_file import VectorFile

    refuse_compressed(path, "a vector file")
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
    """Print the counts of a folder. The answer is no if blocks are damaged, missing, or of unknown
    number.
    """
    from sentkit.formats.files import shown_path
    from sentkit.formats.vectors.folder_check import counts_of, problems
    from sentkit.formats.vectors.folders import open_folder

    folder = open_folder(path)
    status = folder.status(accepts_damage=deep)

    # The problems of each block; with an empty name, those of the inputs.
    problems_of = defaultdict[str, list[str]](list)
    if deep:
        progress = TaskProgress(console, "blocks")
        progress.begin(len(status.complete_blocks))
        for block_name, problem in problems(folder, status):
            if problem is not None:
                problems_of[block_name].append(problem)
            progress.add(1 if block_name else 0)

    # Damaged blocks are missing ones, of which --remove also removes the files.
    damaged = [
        block_name
        for block_name, texts in problems_of.items()
        if texts[0].startswith(f"{folder.block_path(block_name)}: damaged: ")
    ]
    if remove:
        for block_name in damaged:
            Path(folder.block_path(block_name)).unlink(missing_ok=True)
    status.missing_blocks += [
        status.complete_blocks.pop(block_name) for block_name in problems_of if block_name
    ]

    counts = counts_of(folder, status, shards)
    all_problems = [text for texts in problems_of.values() for text in texts]
    record: dict[str, Any] = {"folder": shown_path(path), **counts}
    if deep:
        record["problems"] = [shown_path(text) for text in all_problems]
    if remove:
        record["removed"] = len(damaged)
    output = Output()
    output.write_record(record, as_table=output.on_terminal and not json)

    if all_problems:
        advice = f"no block is damaged; {advice_for_input(path, all_problems[0])}"
        if damaged:
            advice = f"sentkit check {quote(path)} --deep --remove removes damaged blocks"
            if remove:
                advice = f"removed blocks: {len(damaged)}"
            advice += "; encode --resume writes them again, encode --reuse those of changed inputs"
        raise AnswerIsNo(all_problems[0], advice=advice)
    if status.length_is_unknown:
        problem = f"{path}: {counts['blocks']} blocks are complete, others are missing"
        raise AnswerIsNo(problem, advice="their number is unknown until the last one exists")
    missing = counts["missing"]
    if missing:
        raise AnswerIsNo(f"{path}: {missing} of {counts['blocks'] + missing} blocks are missing")


def advice_for_input(path: str, problem: str) -> str:
    """What to do about an input of the folder at `path` that has changed or cannot be read."""
    if ": has changed: " in problem or ": made from other rows " in problem:
        return f"for this input: sentkit encode -o NEW/ --reuse {quote(path)}"
    return "restore this input"
