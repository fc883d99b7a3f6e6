"""`sentkit check`: the state of a vector folder, or of a vector file."""

from collections import defaultdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from sentkit.console import Console, TaskProgress
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import Named, Needs, Range, options


def check(
    *,
    path: Annotated[str, Named("PATH")],
    shards: Annotated[int | None, Range(min=1)] = None,
    deep: bool = False,
    remove: Annotated[bool, Needs("--deep")] = False,
    json: bool = False,
    console: Console,
) -> None:
    """Find missing blocks of a vector folder, or damage of a file.

    Flags:
      PATH: A vector folder (from encode -o DIR/) or file.
      --shards N: Also list the shards of N with missing blocks.
      --deep: Read all blocks and inputs, and compare their digests.
      --remove: Remove damaged blocks, which encode --resume writes again.
    """
    from sentkit.formats.files import is_input_file, readable
    from sentkit.formats.vectors.folder_check import counts_of, problems
    from sentkit.formats.vectors.folders import open_folder

    output = options.ReportFlags(json=json)
    if is_input_file(path):
        if shards is not None or remove:
            flag = "--remove" if remove else "--shards"
            raise UsageError(f"{flag} needs a vector folder, {path} is a file")
        check_file(path, output)
        return
    folder = open_folder(path)
    status = folder.status()
    bad = defaultdict[str, list[str]](list)  # block -> problems; with an empty name, those of inputs
    tasks = TaskProgress(console, "blocks")
    tasks.begin(len(status.done))
    for name, problem in problems(folder, status) if deep else ():
        if problem is not None:
            bad[name].append(problem)
        tasks.add(1 if name else 0)
    damaged = [name for name, texts in bad.items() if texts[0].startswith(f"{folder.file(name)}: damaged: ")]
    if remove:
        for name in damaged:
            Path(folder.file(name)).unlink(missing_ok=True)
    status.missing += [status.done.pop(name) for name in bad if name]
    counts = counts_of(folder, status, shards)
    defects = [text for texts in bad.values() for text in texts]
    record: dict[str, Any] = {"folder": readable(path), **counts}
    record |= {"problems": list(map(readable, defects))} if deep else {}
    record |= {"removed": len(damaged)} if remove else {}
    output.write(record)
    if defects:
        again = "encode --resume writes them again, encode --reuse those of changed inputs"
        command = f"sentkit check {quote(path)} --deep --remove removes damaged blocks"
        raise AnswerIsNo(
            defects[0], advice=f"removed blocks: {len(damaged)}; {again}" if remove else f"{command}; {again}"
        )
    if status.unknown:
        problem = f"{path}: {counts['blocks']} blocks are complete, others are missing"
        raise AnswerIsNo(problem, advice="their number is unknown until the last one exists")
    if missing := counts["missing"]:
        raise AnswerIsNo(f"{path}: {missing} of {counts['blocks'] + missing} blocks are missing")


def check_file(path: str, output: options.ReportFlags) -> None:
    from sentkit.formats.files import readable
    from sentkit.formats.vectors.vector_file import VectorFile

    file = VectorFile(path)
    damage = file.damage()
    record = {"file": readable(path), "rows": file.count, "problems": [] if damage is None else [damage]}
    output.write(record)
    if damage is not None:
        has_none = "digest" not in file.header.metadata
        advice = "sentkit cat FILE -o NEW.safetensors adds a digest" if has_none else None
        raise AnswerIsNo(f"{path}: {damage}", advice=advice)
