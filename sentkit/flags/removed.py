"""Advice for flags that a command does not have: those of an older sentkit, and those of `sentkit
cat`.

The removed flags and the way that replaces each stay here until the first release.
"""

from collections.abc import Sequence
from shlex import join

BY_PRECISION = "set the variable SENTKIT_PRECISION=bf16 or fp32"
BY_STORE = "pipe the rows to: sentkit cat --store KIND -o FILE.safetensors"
BY_VECTORS = "set the variable SENTKIT_VECTORS=base64"
BY_TRANSFORMERS = "write a base with transformers (see sentkit-train(1)), and use -m"
# "COMMAND --flag", or "COMMAND --flag VALUE" for one value of a flag that stays
REMOVED: dict[str, str] = {
    "build-entries --store": BY_STORE,
    "build-entries --vectors": BY_VECTORS,
    "cat --files-from": "use xargs: find FOLDER -name '*.jsonl' -print0 | xargs -0 sentkit cat",
    "cat --max-line": "the limit is 64 MiB; shorten or divide longer rows, for example with jq",
    "cat --partial": "encode --resume writes missing blocks; the complete ones are "
    "DIR/*.safetensors",
    "cluster --threads": "set the variable SENTKIT_THREADS=N",
    "encode --on-truncate late": "use --on-truncate chunks, or window for the mean",
    "inspect --replay": "inspect prints the command of a checkpoint and those of its bases",
    "plot curve --json": "add: | cat",
    "plot heat --json": "add: | cat",
    "plot pairs --json": "add: | cat",
    "plot space --json": "add: | cat",
    "plot sweep --json": "add: | cat",
    "search --precision": BY_PRECISION,
    "train --init": BY_TRANSFORMERS,
    "train --tokenizer": BY_TRANSFORMERS,
    "translate --precision": BY_PRECISION,
    "whiten apply --store": BY_STORE,
    "whiten apply --vectors": BY_VECTORS,
}
FLAGS_OF_CAT = ("--columns", "--from", "--quoting")  # how rows are read


def advice_of_removed(command: str, words: Sequence[str]) -> tuple[str, str] | None:
    """The removed flag among the words of a command line, and the way that replaces it."""
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if not equals:
            value = next_word
        for name in (flag, f"{flag} {value}"):
            if f"{command} {name}" in REMOVED:
                return name, REMOVED[f"{command} {name}"]
    return None


def advice_of_cat(command: str, words: Sequence[str], unknown: str) -> str | None:
    """For a command that reads rows: the pipe from `sentkit cat`, if cat has the unknown flag."""
    if unknown not in FLAGS_OF_CAT:
        return None
    for i, word in enumerate(words):
        if word == unknown:
            return f"sentkit cat FILE {join(words[i : i + 2])} | sentkit {command}"
        if word.startswith(f"{unknown}="):
            return f"sentkit cat FILE {join([word])} | sentkit {command}"
    return None
