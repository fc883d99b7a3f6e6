"""Generator of the man pages from the commands: `python -m sentkit.manual man` writes man/man1."""

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentkit import __version__
from sentkit.cli import headings, program

EXIT_CODES = (
    ("0", "success, also if the next command of the pipe ends before it has read all"),
    (
        "1",
        "a check failed: the score is below --fail-under (score), a block is missing or damaged (check), an "
        "evaluation failed (report), or an input of --replay is missing or has changed (inspect)",
    ),
    ("2", "wrong usage"),
    ("65", "bad data, or vectors of different spaces"),
    ("66", "an input or a model does not exist"),
    ("69", "a device, the hub or an optional library is not available"),
    ("70", "a bug in sentkit; the message names the file with the traceback"),
    ("73", "the output cannot be created, or already exists"),
    ("74", "reading or writing failed, for example because the disk is full"),
    ("75", "stopped by a signal; state or blocks are saved; to continue, repeat the command with --resume"),
    ("129, 130, 143", "stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM"),
)
OUTPUTS = (
    "An output file is complete, or it does not exist. It is written to a temporary file in its folder, "
    ".NAME.sentkit-RANDOM, and renamed at the end. All outputs of a command appear together at its "
    "end, or none of them appears.",
    "Without -f an existing output is an error, also if another process creates it in the meantime. "
    "With -f it is overwritten in one step, so a program that reads it gets the complete old or the "
    "complete new file. If several commands write one file, the last file stays. A folder (train, export, "
    "distill-static) "
    "is replaced in one step too. If the system cannot do this and the process is killed at that moment, "
    "the old folder remains as .NAME.sentkit-old-RANDOM.",
    "If a process is killed, its temporary file remains. The next command with the same output reports "
    "the file. No command uses or deletes it.",
    "If the output is a symbolic link, the target of the link is created or replaced, and the link is "
    "kept. sentkit writes directly to named pipes, devices and /dev/stdout. An output that is also an "
    "input is an error, even with -f; only export -f can replace the checkpoint that it reads.",
    "The suffix of an output determines its format: .safetensors is a vector file; .parquet is Parquet; "
    ".jsonl, .ndjson, .json and names without a suffix are JSON Lines; .gz and .zst compress these. A number "
    "(part.003, run.v2) is not a suffix. Other suffixes are errors. The reports and pictures of report and "
    "plot have other formats; see their pages. The file of --rejects can have any name; it contains the "
    "unchanged bad lines. A line with too many tokens can follow later bad lines.",
)
ONLY_ON = {
    "1": ("sentkit", "sentkit score", "sentkit check", "sentkit report", "sentkit inspect"),
    "75": ("sentkit", "sentkit train", "sentkit encode"),
}  # code -> its pages
SECTIONS = {  # additional sections of a page
    "sentkit train": {
        "RESUME": (
            "The state of a run is saved in the folder OUT.part next to its output: every 300 seconds "
            "(--save-seconds), and every N steps with --save-every N. The same command with --resume "
            "continues at the saved step. The checkpoint then has the same bytes as after a run without "
            "interruption if these are the same: kind of machine, number of threads, version of torch, "
            "precision, number of processes. Otherwise a warning reports the difference. On CUDA, also use "
            "--deterministic.",
            "After Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2, the command finishes the step, saves the "
            "state and exits with code 75. After SIGKILL, the steps since the last save are lost. With other "
            "settings, other rows or another base, --resume is an error, and the message states the "
            "difference. If there is no saved state, --resume starts a new run, so a script can always use "
            "--resume.",
        ),
        "STATIC MODELS": (
            "If -m is a folder of model2vec or a StaticEmbedding of sentence-transformers, such as the "
            "output of distill-static, the run trains the vectors of its tokens, and their weights if the "
            "folder has them. The new folder has the files of the base and a float32 table, also if the "
            "base has int8 or float16. The same programs read it. Static models need higher learning rates "
            "than transformers, such as --lr 0.01; distill has --preset static. If the vectors of texts have "
            "unit length, training divides the table by a power of two first, so that one rate is right for "
            "all such models.",
            "A static model has no layers and no dropout, so only methods that need nothing but the vectors "
            "of texts can train it; the description above names them. The readout is mean, and the "
            "precision fp32. If the vectors of a teacher have another width, distill multiplies the table "
            "by its linear map, and the new folder has this width. A text without a known token is a bad "
            "row.",
        ),
        "SEVERAL PROCESSES": (
            "torchrun --nproc-per-node N -m sentkit -- train METHOD ROWS ... runs N processes. The "
            "setting batch is the number of rows of all processes together. Each process encodes a part of "
            "the batch. The loss and the gradient are those of the whole batch. Only the dropout differs, "
            "because each process draws its own. On CUDA, process K uses GPU K. The first process evaluates, "
            "writes and prints.",
            "After a signal every process saves and exits with 75, but torchrun itself exits with 1.",
            "With one process, use --chunk N to encode a large batch in parts of N rows, with less memory. "
            "The loss and the gradient are those of the whole batch, except for the dropout.",
        ),
        "CLUSTERS": (
            "A batch system can send a signal before the time limit and start the job again. With Slurm:",
            "#!/bin/sh\n"
            "#SBATCH --signal=USR1@120 --requeue\n"
            "srun sentkit train simcse titles.txt -m BASE -o run --resume\n"
            "code=$?\n"
            'if [ $code -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
            "exit $code",
            "Every process reads the rows, the base and the output folder, so they must be on a shared file "
            "system. While a run uses an output folder, a second run in this folder is an error. In a job "
            "array, give each job its own seed and its own output folder.",
        ),
    },
}
ENVIRONMENT = (
    ("SENTKIT_VECTORS", "list or base64: the default of --vectors"),
    ("HF_HUB_OFFLINE", "1: read hub models only from the local cache"),
    ("HF_HOME, HF_TOKEN", "the folder of the hub's cache, and the token for private models"),
    ("OMP_NUM_THREADS", "the default of --threads; train ignores it"),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that may be used"),
    ("NO_COLOR, TERM", "NO_COLOR disables colors; TERM=dumb disables the progress bar"),
)


def pages() -> dict[str, str]:
    """File name -> page, for the program, its commands and their subcommands."""
    return dict(pages_of("sentkit", program))


def pages_of(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """The pages of a command and its subcommands; `name` is the full name, such as `sentkit whiten fit`."""
    if not hasattr(command, "commands"):
        yield f"{hyphenated(name)}.1", command_page(name, command)
        return
    yield f"{hyphenated(name)}.1", group_page(name, command)
    for word, inner in command.commands.items():
        yield from pages_of(f"{name} {word}", inner)


def hyphenated(name: str) -> str:
    return name.replace(" ", "-")


def group_page(name: str, group: Any) -> str:
    summary, examples, paragraphs = parts_of(group.help)
    lines = [*header(name, summary), ".SH SYNOPSIS", f".B {escape(name)}", r"\fICOMMAND\fR [\fIOPTIONS\fR]"]
    lines += [".SH DESCRIPTION", *body([summary, *(p for p in paragraphs if "Exit codes" not in p)])]
    lines += [".SH COMMANDS"]
    sections = headings(group.commands)
    for heading, words in sections.items():
        lines += [f".SS {heading}"] if len(sections) > 1 else []
        for word in words:
            summary, _, _ = parts_of(group.commands[word].help)
            lines += [".TP", rf"\fB{escape(f'{name} {word}')}\fR", escape(summary)]
    if name == "sentkit":
        lines += [".SH OUTPUT", *body(OUTPUTS)]
    lines += [*tail(name, examples), *see_also(name, subcommands(name, group))]
    return "\n".join(lines) + "\n"


def command_page(name: str, command: Any) -> str:
    summary, examples, paragraphs = parts_of(command.help)
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    synopsis = " ".join(rf"\fI{escape(argument.metavar)}\fR" for argument in arguments)
    lines = [*header(name, summary), ".SH SYNOPSIS", f".B {escape(name)}"]
    lines += [rf"[\fIOPTIONS\fR] {synopsis}".rstrip(), ".SH DESCRIPTION", *body([summary, *paragraphs])]
    lines += [".SH OPTIONS"]
    for parameter in [*arguments, *(p for p in command.params if p not in arguments)]:
        lines += option(parameter)
    for title, section in SECTIONS.get(name, {}).items():
        lines += [f".SH {title}", *body(section)]
    lines += [*tail(name, examples), *see_also(name)]
    return "\n".join(lines) + "\n"


def parts_of(text: str) -> tuple[str, list[str], list[str]]:
    """Split a help text into its first sentence, its example lines, and its other paragraphs."""
    summary, *rest = [part.strip("\n") for part in inspect.cleandoc(text).split("\n\n")]
    examples: list[str] = []
    paragraphs: list[str] = []
    for part in rest:
        lines = part.replace("\b", "").strip("\n").split("\n")
        if lines[0] == "Examples:":
            examples = [line.strip() for line in lines[1:]]
        elif part.startswith("\b"):  # a list
            paragraphs.append("\n".join(lines))
        else:
            paragraphs.append(" ".join(line.strip() for line in lines))
    return summary, examples, paragraphs


def option(parameter: Any) -> Iterator[str]:
    names = parameter.opts if parameter.opts[0].startswith("-") else [parameter.metavar]
    choices = "|".join(getattr(parameter.type, "choices", ()))
    value = "" if parameter.type.name == "boolean" else parameter.metavar or choices
    shown = ", ".join(rf"\fB{escape(name)}\fR" for name in names)
    yield ".TP"
    yield shown if not value or value in names else rf"{shown} \fI{escape(value)}\fR"
    yield from wrapped(help_of(parameter))


def help_of(parameter: Any) -> str:
    """The help text with its default, as `--help` prints it."""
    default = parameter.default
    if default in (None, False, True, "") or "[default:" in parameter.help:
        return str(parameter.help)
    return f"{parameter.help} [default: {default}]"


def header(name: str, summary: str) -> list[str]:
    return [
        f'.TH {escape(hyphenated(name).upper())} 1 "" "sentkit {__version__}" "sentkit manual"',
        ".SH NAME",
        rf"{escape(hyphenated(name))} \- {escape(summary[:1].lower() + summary[1:].rstrip('.'))}",
    ]


def body(paragraphs: Sequence[str]) -> Iterator[str]:
    """Paragraphs below a heading."""
    for place, paragraph in enumerate(paragraphs):
        yield from ([".PP"] if place else [])
        if "\n" in paragraph:
            yield from (".nf", *map(escape, paragraph.split("\n")), ".fi")
        else:
            yield from wrapped(paragraph)


def wrapped(text: str) -> list[str]:
    return [escape(line) for line in textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)]


def tail(name: str, examples: Sequence[str]) -> Iterator[str]:
    codes = [entry for entry in EXIT_CODES if name in ONLY_ON.get(entry[0], (name,))]
    for title, entries in (("EXIT STATUS", codes), ("ENVIRONMENT", ENVIRONMENT)):
        yield f".SH {title}"
        for name, meaning in entries:
            yield from (".TP", rf"\fB{escape(name)}\fR", *wrapped(meaning))
    yield from (".SH EXAMPLES", ".nf", *(escape(line) for line in examples), ".fi")


def above(name: str) -> list[str]:
    """The pages that list this page: `sentkit whiten` and `sentkit` for `sentkit whiten fit`."""
    words = name.split()
    return [" ".join(words[:count]) for count in range(len(words) - 1, 0, -1)]


def subcommands(name: str, group: Any) -> Iterator[str]:
    """The full names of the commands below a group, also those in groups."""
    for word, inner in group.commands.items():
        yield f"{name} {word}"
        if hasattr(inner, "commands"):
            yield from subcommands(f"{name} {word}", inner)


def see_also(name: str, below: Iterable[str] = ()) -> Iterator[str]:
    pages = [f"{hyphenated(each)}(1)" for each in (*above(name), *below)]
    more = ["sentkit-methods(7)"] if name in ("sentkit", "sentkit train") else []
    yield ".SH SEE ALSO"
    yield from wrapped(", ".join([*pages, "sentkit-rows(5)", *more]))


def escape(text: str) -> str:
    """Escape backslashes, hyphens and a leading dot or quote for roff."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + plain if plain.startswith((".", "'")) else plain


def write(folder: Path) -> None:
    for name, page in pages().items():
        (folder / "man1" / name).write_text(page)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
