"""The methods of `sentkit train`: those of the papers, general ones, and those of users.

`./mine.py:MyMethod` is a class in a file, `package.module:MyMethod` one of a package. An error of the class
is a DataError with its file and line. Importing this module does not import torch.
"""

import ast
import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, make_dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import TYPE_CHECKING, get_type_hints

from sentkit.errors import DataError, NoInputError, SentkitError, UsageError
from sentkit.flag_values import suggestion
from sentkit.papers import PAPERS
from sentkit.process import Interrupted, raised_signal
from sentkit.training.methods import recipes
from sentkit.training.settings import Listing, notes, readout

if TYPE_CHECKING:
    from sentkit.training.method import Method


def general(summary: str, place: str, cite: str = "", note: str = "") -> Listing:
    settings = getattr(recipes, place.partition(":")[2])
    return Listing(summary, f"sentkit.training.methods.{place}", cite, note, settings)


GENERAL = {
    # sentences
    "mlm": general("predict masked tokens", "mlm:MaskedLanguageModel", "1810.04805"),
    "simcse": general(
        "contrast copies of a sentence; positive pairs",
        "simcse:SimCSE",
        "2104.08821",
        "With mlm_weight, the released code masks both copies of a sentence. This method masks one of them.",
    ),
    "esimcse": general(
        "SimCSE with repeated tokens and a queue",
        "esimcse:ESimCSE",
        "2109.04380",
        "The momentum encoder starts as a copy of the base. In the released code it starts with random "
        "weights, because it is copied before the weights are loaded.",
    ),
    "promptbert": general(
        "contrast two templates without their bias",
        "promptbert:PromptBERT",
        "2201.04337",
        "The paper evaluates its supervised encoders through the head and without the bias of the template, "
        "which depends on the length of the text. No readout computes this. So --dev and the checkpoint use "
        "the state of [MASK], as the paper does for transfer tasks and without labels. The full stop of a "
        "template is also added in training; the released code adds it only in the evaluation.",
    ),
    "ct": general(
        "contrast the products of two encoders",
        "contrastive_tension:ContrastiveTension",
        note="As in the text of the paper, all pairs of a row have the same first sentence. The released "
        "code draws both sentences of a negative pair. The loss is that of the released code.",
    ),
    "is-bert": general(
        "match a sentence with its n-grams",
        "is_bert:ISBERT",
        "2009.12061",
        "As in the released code, no activation follows the convolution. Reviews of the paper have a ReLU.",
    ),
    "tsdae": general(
        "restore a sentence from its vector",
        "tsdae:TSDAE",
        "2104.06979",
        "The cross-attention has one key, so its weight is 1. The released code applies dropout to it; "
        "this method does not.",
    ),
    "rank-encoder": general(
        "SimCSE, and ranks by a frozen encoder",
        "rank_encoder:RankEncoder",
        "2209.04333",
        "The paper ranks 100,000 sentences, as the preset does; the released script ranks 10,000. The script "
        "selects the step by the mean of STS-B and SICK-R dev; here --dev does.",
    ),
    # pairs and triplets
    "contrast": general("contrast pairs, with any number of negatives", "contrast:Contrast", "1807.03748"),
    "simcse-sup": general("contrast triplets", "simcse:SupervisedSimCSE", "2104.08821"),
    "clear": general("contrast two variants; predict masked tokens", "clear:CLEAR", "2012.15466"),
    "sncse": general(
        "PromptBERT, with negations",
        "promptbert:SNCSE",
        "2201.05979",
        "The released script saves a checkpoint every 125 steps and evaluates none; here --dev chooses one.",
    ),
    # labels and scores
    "sbert": general(
        "learn labels or scores of pairs, or triplets",
        "pairs:SBERT",
        "1908.10084",
        "The library of the paper has AdamW without bias correction, as --set optimizer=adamw-bert.",
    ),
    "cosent": general(
        "rank the cosines of pairs by their scores",
        "pairs:CoSENT",
        note="Batch and learning rate are those of the released code. Its 5 epochs, constant rate, length 64 "
        "and [CLS] are not followed.",
    ),
    "angle": general(
        "rank pairs by angle; contrast positives",
        "pairs:AnglE",
        "2309.12871",
        "The weights are those of the README of the released code; the code of later releases has "
        "cosine_weight=0. The contrast is divided by all rows of both columns, as in the code. Batch, "
        "rate and length are those of the README; its 5 epochs, no warm-up and [CLS] are not followed.",
    ),
    "classify": general(
        "predict labels or scores of texts or pairs",
        "classify:Classify",
        "1810.04805",
        "The released code has AdamW without bias correction and epsilon 1e-6: --set optimizer=adamw-bert.",
    ),
    # teachers
    "distill": general("learn the vectors of a teacher", "distill:Distill"),
}
GROUPS = {  # of --list; the other methods are those of single papers
    "for products": ("contrast", "distill", "classify", "sbert", "cosent", "angle"),
    "without labels": ("simcse", "tsdae", "mlm", "esimcse", "promptbert", "ct", "is-bert", "rank-encoder"),
}
METHODS = {name: listing for paper in PAPERS.values() for name, listing in paper.methods.items()} | GENERAL
MANUAL = "see: man 7 sentkit-method"


@dataclass(frozen=True, slots=True)
class LoadedMethod:
    kind: "type[Method]"
    name: str  # for a method of a user: the file without its folder, and the class
    file: str | None = None  # of a user
    digest: str | None = None  # of this file
    code: bytes | None = None  # this file, unless it is part of a package


def load(name: str) -> LoadedMethod:
    """Return the class of a method and its file, if it is a user's. This imports torch."""
    if ":" in name:
        return load_user_method(name)
    if name not in METHODS:
        if name.endswith(".py") and not Path(name).is_file():
            raise NoInputError(f"{name}: no such file")
        raise UsageError(f'unknown method "{name}"', advice=advice_for_unknown(name))
    return LoadedMethod(METHODS[name].load(), name)


def advice_for_unknown(name: str) -> str:
    """Advice for a first word that is no method: a file without its class, rows, or a typing error."""
    if not Path(name).is_file():
        return suggestion(name, METHODS)
    if not name.endswith(".py"):
        return f"the method is the first word: sentkit train METHOD {quote(name)}; see sentkit train --list"
    classes = classes_in(name)
    if not classes:
        return f"a method of your own is FILE.py:CLASS, but {name} has no class that can be one; {MANUAL}"
    return f"add the class: {' or '.join(quote(f'{name}:{class_name}') for class_name in classes)}"


def classes_in(path: str) -> list[str]:
    """Return the classes of a file that are a subclass of Method by name, else all. The file is not run."""
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return []
    bases = {
        statement.name: [ast.unparse(base) for base in statement.bases]
        for statement in statements
        if isinstance(statement, ast.ClassDef)
    }
    methods = set[str]()
    for name, names_of_bases in bases.items():  # a base is above its subclasses
        if any(base.endswith("Method") or base in methods for base in names_of_bases):
            methods.add(name)
    return [name for name in bases if name in methods or not methods]


@contextmanager
def open_method(name: str) -> Iterator[LoadedMethod]:
    """Load a method. In the context, the errors of a method of a user have the line of its file."""
    loaded = load(name)
    with nullcontext() if loaded.file is None else errors_in(loaded.file):
        yield loaded


def names_of(method: str) -> tuple[list[str], list[str]]:
    """Return the settings and presets of a method, without torch."""
    listing = METHODS[method]
    return [each.name for each in fields(listing.settings)], list(listing.settings.presets)


# Methods of users.


def load_user_method(name: str) -> LoadedMethod:
    """Import the file or module and return the class. This imports torch."""
    from sentkit.training.method import Method

    place, _, kind_name = name.rpartition(":")
    path = place if place.endswith(".py") else ""
    if path and not Path(path).is_file():
        raise NoInputError(f"{path}: no such file")
    advice = "give a file, such as ./mine.py:MyMethod, or install the package"
    if not path and not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f'{name}: "{place}" is neither a file *.py nor a module', advice=advice)
    with errors_in(place):
        try:
            module = module_of(path) if path else import_module(place)
        except ModuleNotFoundError as error:
            if path or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise UsageError(f"{name}: no module {error.name}", advice=advice) from error
        kind = getattr(module, kind_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        classes = [
            class_name
            for class_name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
        ]
        advice = f"write class MyMethod(Method); {MANUAL}"
        if classes:
            names = " and ".join(f"{place}:{class_name}" for class_name in classes)
            advice = f"{place} has {names}"
        raise UsageError(f'{name}: "{kind_name}" is not a subclass of Method', advice=advice)
    for each in ("encode", "loss"):
        if getattr(getattr(kind, each), "__isabstractmethod__", False):
            raise UsageError(f"{name}: the class does not define {each}", advice=MANUAL)
    file = path or str(module.__file__)
    code = Path(file).read_bytes()
    digest = hashlib.sha256(code).hexdigest()[:16]
    with errors_in(file):
        complete(kind)
    return LoadedMethod(kind, f"{Path(file).name}:{kind_name}", file, digest, code if path else None)


def module_of(path: str) -> ModuleType:
    """The module of a file. No bytecode is written: the file can be in a checkpoint."""
    name, content = f"sentkit_user_{Path(path).stem}", Path(path).read_bytes()
    spec = spec_from_file_location(name, path)
    assert spec is not None, path
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module
    exec(compile(content, path, "exec"), vars(module))
    return module


@contextmanager
def errors_in(path: str) -> Iterator[None]:
    """Turn an error into a message with the line of this file that it passes through; also `sys.exit`.

    An error that does not pass through it, such as one in a gradient, has the place that raises it.
    """
    try:
        yield
    except (SentkitError, Interrupted, KeyboardInterrupt, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        frames = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno))
        lines = [line for name, line in frames if Path(name).resolve() == Path(path).resolve()]
        of_signal = isinstance(error, SystemExit) and raised_signal() is not None
        if of_signal or (not lines and isinstance(error, OSError)):
            raise
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, SystemExit):
            problem = "the method ends the program (SystemExit); raise another error instead"
        raised = None if lines else f"raised in {frames[-1][0]}:{frames[-1][1]}"
        raise DataError(problem, source=path, line=lines[-1] if lines else None, advice=raised) from error


def complete(kind: "type[Method]") -> None:
    """Add the setting `readout` if the class has only the default readouts; check settings and presets."""
    from sentkit.training.method import Method

    of_readouts = inspect.getattr_static(kind, "readouts")
    if "readout" not in kind.Settings.__dataclass_fields__ and of_readouts is vars(Method)["readouts"]:
        field = ("readout", str, readout("mean", of_paper=False))
        kind.Settings = make_dataclass("Settings", [field], bases=(kind.Settings,), frozen=True, kw_only=True)
    hints = get_type_hints(kind.Settings)
    for each in fields(kind.Settings):
        each.type = hints[each.name]
        if "note" not in each.metadata:
            how = f'{each.name}: float = ours(1.0, "meaning")'
            raise TypeError(f"the setting {each.name} has no source; write it as {how}")
    rules = notes(kind.Settings)
    for preset, values in kind.presets.items():
        for name, value in values.items():
            if name in rules and (refusal := rules[name].refusal(value)):
                raise ValueError(f"{preset}: {name}={value}: {refusal}")
