"""The arguments of `sentkit report` -> the rows of the table, each with its checkpoints."""

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentkit.errors import NoInputError, UsageError
from sentkit.formats.files import MARKS, exists, is_folder

SEED = re.compile(r"seed-(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the checkpoints are the seeds of one method."""

    name: str
    readout: str | None  # None: as each checkpoint declares
    models: tuple[str, ...]
    transforms: tuple[str | None, ...]  # of the vectors of each model

    @property
    def label(self) -> str:
        return self.name if self.readout is None else f"{self.name}#{self.readout}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The numbers of folders such as seed-3; empty for other checkpoints."""
        return tuple(seed for model in self.models if (seed := seed_of(model)) is not None)


def rows_of(arguments: Sequence[str]) -> list[Row]:
    """Parse [NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]. Those with the same name and readout are one row."""
    rows: dict[tuple[str, str | None], Row] = {}
    for argument in arguments:
        name, model, own, transform = split(argument)
        models = checkpoints_of(model)
        seeds = all(seed_of(each) is not None for each in models)
        transforms = (transform,) * len(models)
        row = Row(name or default_name(model, models), own, tuple(models), transforms)
        key = row.name, row.readout
        if key in rows:
            if not (name or seeds):
                problem = f'two rows have the name "{row.label}"'
                raise UsageError(problem, advice=f"give each a name, for example first={rows[key].models[0]}")
            row = Row(*key, (*rows[key].models, *models), (*rows[key].transforms, *transforms))
        if len(set(zip(row.models, row.transforms, strict=True))) < len(row.models):
            raise UsageError(f'row "{row.label}": {model} is given twice')
        rows[key] = row
    return list(rows.values())


def split(argument: str) -> tuple[str, str, str | None, str | None]:
    """The four parts; one that is absent is empty or None. An existing path is a path."""
    if exists(Path(argument)):
        return "", argument, None, None
    name, sign, model = argument.partition("=")
    if not sign or "/" in name:
        name, model = "", argument
    elif not name or not model:
        raise UsageError(f'"{argument}": expected NAME=CHECKPOINT')
    if "#" not in model or exists(Path(model)):
        return name, model, None, None
    model, _, rest = model.rpartition("#")
    readout, sign, transform = rest.partition("@")
    if not model or not readout or (sign and not transform):
        raise UsageError(f'"{argument}": expected CHECKPOINT#READOUT or CHECKPOINT#READOUT@TRANSFORM')
    return name, model, readout, transform or None


def checkpoints_of(model: str) -> list[str]:
    """The checkpoint itself, those that a pattern matches, or the folders seed-N of a folder of runs."""
    if not MARKS.isdisjoint(model) and not exists(Path(model)):
        found = by_seed(path for path in glob.glob(model) if is_folder(Path(path)))  # noqa: PTH207
        if not found:
            raise NoInputError(f"{model}: no folder matches this pattern")
        return found
    folder = Path(model)
    if is_folder(folder) and not any(folder.glob("*.json")):
        return by_seed(str(path) for path in folder.glob("seed-*") if SEED.fullmatch(path.name)) or [model]
    return [model]


def by_seed(paths: Iterable[str]) -> list[str]:
    """Sorted by number, so that seed-10 follows seed-9. Folders of unfinished runs are left out."""
    complete = (path for path in paths if not path.rstrip("/").endswith(".part"))
    return sorted(complete, key=lambda path: (seed_of(path) or 0, path))


def seed_of(model: str) -> int | None:
    match = SEED.fullmatch(Path(model).name)
    return int(match[1]) if match else None


def default_name(model: str, models: Sequence[str]) -> str:
    """The name of the folder, or of the folder above seed-N."""
    if seed_of(models[0]) is not None:
        return Path(models[0]).absolute().parent.name
    return Path(model).name or model


def find_baseline(rows: Sequence[Row], name: str) -> Row:
    found = [row for row in rows if name in (row.label, row.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f'"{row.label}"' for row in rows)
    problem = "several rows have this name" if found else "no row has this name"
    raise UsageError(f'--baseline "{name}": {problem}', advice=f"the rows are {names}")


def seeds_warning(rows: Sequence[Row]) -> Iterator[str]:
    """A message if rows with seeds do not all have the same ones."""
    seeds = {row.label: row.seeds for row in rows if row.seeds}
    if len(set(seeds.values())) > 1:
        listed = "; ".join(f'"{name}" has {", ".join(map(str, each))}' for name, each in seeds.items())
        yield f"the seeds differ between the rows: {listed}"
