"""The methods of `sentkit train`: those of the papers, general ones, and those of users.

`./mine.py:MyMethod` is a class in a file, `package.module:MyMethod` one of a package. An error of
the class is a DataError with its file and line. Importing this module does not import torch.
"""

import ast
import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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
from sentkit.training.listings import Listing
from sentkit.training.methods import recipes
from sentkit.training.settings import MANUAL, OF_RUN, notes, readout

if TYPE_CHECKING:
    from sentkit.training.method import Method


def general(summary: str, class_path: str, cite: str = "", note: str = "") -> Listing:
    """Return the entry of a method in `methods`. Its settings have the name of its class."""
    _, _, class_name = class_path.partition(":")
    settings = getattr(recipes, class_name)
    return Listing(summary, f"sentkit.training.methods.{class_path}", cite, note, settings)


GENERAL = {
    # sentences
    "mlm": general("predict masked tokens", "mlm:MaskedLanguageModel", "1810.04805"),
    "simcse": general(
        "contrast copies of a sentence; positive pairs",
        "simcse:SimCSE",
        "2104.08821",
        "With mlm_weight, the released code masks both copies of a sentence. This method masks one "
        "of them.",
    ),
    "esimcse": general(
        "SimCSE with repeated tokens and a queue",
        "esimcse:ESimCSE",
        "2109.04380",
        "The momentum encoder starts as a copy of the base. In the released code it starts with "
        "random weights, because it is copied before the weights are loaded.",
    ),
    "promptbert": general(
        "contrast two templates without their bias",
        "promptbert:PromptBERT",
        "2201.04337",
        "The paper evaluates its supervised encoders through the head and without the bias of the "
        "template, which depends on the length of the text. No readout computes this. So --dev and "
        "the checkpoint use the state of [MASK], as the paper does for transfer tasks and without "
        "labels. The full stop of a template is also added in training; the released code adds it "
        "only in the evaluation.",
    ),
    "ct": general(
        "contrast the products of two encoders",
        "contrastive_tension:ContrastiveTension",
        note="As in the text of the paper, all pairs of a row have the same first sentence. The "
        "released "
        "code draws both sentences of a negative pair. The loss is that of the released code.",
    ),
    "is-bert": general(
        "match a sentence with its n-grams",
        "is_bert:ISBERT",
        "2009.12061",
        "As in the released code, no activation follows the convolution. Reviews of the paper have "
        "a ReLU.",
    ),
    "tsdae": general(
        "restore a sentence from its vector",
        "tsdae:TSDAE",
        "2104.06979",
        "The cross-attention has one key, so its weight is 1. The released code applies dropout to "
        "it; this method does not.",
    ),
    "rank-encoder": general(
        "SimCSE, and ranks by a frozen encoder",
        "rank_encoder:RankEncoder",
        "2209.04333",
        "The paper ranks 100,000 sentences, as the preset does; the released script ranks 10,000. "
        "The script selects the step by the mean of STS-B and SICK-R dev; here --dev does.",
    ),
    # pairs and triplets
    "contrast": general(
        "contrast pairs, with any number of negatives", "contrast:Contrast", "1807.03748"
    ),
    "simcse-sup": general("contrast triplets", "simcse:SupervisedSimCSE", "2104.08821"),
    "clear": general("contrast two variants; predict masked tokens", "clear:CLEAR", "2012.15466"),
    "sncse": general(
        "PromptBERT, with negations",
        "promptbert:SNCSE",
        "2201.05979",
        "The released script saves a checkpoint every 125 steps and evaluates none; here --dev "
        "chooses one.",
    ),
    # labels and scores
    "sbert": general(
        "learn labels or scores of pairs, or triplets",
        "pairs:SBERT",
        "1908.10084",
        "The library of the paper has AdamW without bias correction, as --set "
        "optimizer=adamw-bert.",
    ),
    "cosent": general(
        "rank the cosines of pairs by their scores",
        "pairs:CoSENT",
        note="Batch and learning rate are those of the released code. Its 5 epochs, constant rate, "
        "length 64 and [CLS] are not followed.",
    ),
    "angle": general(
        "rank pairs by angle; contrast positives",
        "pairs:AnglE",
        "2309.12871",
        "The weights are those of the README of the released code; the code of later releases has "
        "cosine_weight=0. The contrast is divided by all rows of both columns, as in the code. "
        "Batch, rate and length are those of the README; its 5 epochs, no warm-up and [CLS] are "
        "not followed.",
    ),
    "classify": general(
        "predict labels or scores of texts or pairs",
        "classify:Classify",
        "1810.04805",
        "The released code has AdamW without bias correction and epsilon 1e-6: --set "
        "optimizer=adamw-bert.",
    ),
    # teachers
    "distill": general("learn the vectors of a teacher", "distill:Distill"),
}
GROUPS = {  # of --list; the other methods are those of single papers
    "for products": ("contrast", "distill", "classify", "sbert", "cosent", "angle"),
    "without labels": (
        "simcse",
        "tsdae",
        "mlm",
        "esimcse",
        "promptbert",
        "ct",
        "is-bert",
        "rank-encoder",
    ),
}
SYNONYMS = {  # other names of methods, which are not similar enough, or more so to another method
    "sg-opt": "sg-bert",
    "unsup-simcse": "simcse",
    "simcse-unsup": "simcse",
    "sup-simcse": "simcse-sup",
    "sentence-bert": "sbert",
    "multiple-negatives-ranking": "contrast",
    "mnrl": "contrast",
    "infonce": "contrast",
}
METHODS = {
    name: listing for paper in PAPERS.values() for name, listing in paper.methods.items()
} | GENERAL


@dataclass(frozen=True, slots=True)
class LoadedMethod:
    method_class: "type[Method]"
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
    """Advice for a first word that is not a method: a file without its class, rows, or a
    typing error.
    """
    if not Path(name).is_file():
        return suggestion(name, METHODS, SYNONYMS)
    if not name.endswith(".py"):
        return (
            f"the method is the first word: sentkit train METHOD {quote(name)}; see sentkit "
            f"train --list"
        )
    classes = classes_in(name)
    if not classes:
        return (
            f"a method of your own is FILE.py:CLASS, but {name} has no class that can be one; "
            f"{MANUAL}"
        )
    return f"add the class: {' or '.join(quote(f'{name}:{class_name}') for class_name in classes)}"


def classes_in(path: str) -> list[str]:
    """Return the names of the classes of a file that can be methods: those with a base whose name
    ends with "Method", and their subclasses; all classes if there are none. The file is not run.
    """
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return []
    bases_of_class = {
        statement.name: [ast.unparse(base) for base in statement.bases]
        for statement in statements
        if isinstance(statement, ast.ClassDef)
    }
    methods = set[str]()
    for name, bases in bases_of_class.items():  # a base is above its subclasses
        if any(base.endswith("Method") or base in methods for base in bases):
            methods.add(name)
    return [name for name in bases_of_class if name in methods or not methods]


@contextmanager
def open_method(name: str) -> Iterator[LoadedMethod]:
    """Load a method. In the context, the errors of a method of a user have the line of its file."""
    loaded = load(name)
    if loaded.file is None:
        yield loaded
    else:
        with errors_in(loaded.file):
            yield loaded


def names_of(method: str) -> tuple[list[str], list[str]]:
    """Return the settings and presets of a method, without torch."""
    listing = METHODS[method]
    settings = [field.name for field in fields(listing.settings)]
    return settings, list(listing.settings.presets)


# Methods of users.


def load_user_method(name: str) -> LoadedMethod:
    """Import the file or module and return the class. This imports torch."""
    from sentkit.training.method import Method

    source, _, class_name = name.rpartition(":")  # a file *.py, or a module
    is_file = source.endswith(".py")
    advice = "give a file, such as ./mine.py:MyMethod, or install the package"
    if is_file and not Path(source).is_file():
        raise NoInputError(f"{source}: no such file")
    if not is_file and not all(word.isidentifier() for word in source.split(".")):
        raise UsageError(f'{name}: "{source}" is neither a file *.py nor a module', advice=advice)

    # Import it, which runs the user's code.
    with errors_in(source):
        if is_file:
            module = module_of(source)
        else:
            try:
                module = import_module(source)
            except ModuleNotFoundError as error:
                # a module that the user's module imports
                if not f"{source}.".startswith(f"{error.name}."):
                    raise
                raise UsageError(f"{name}: no module {error.name}", advice=advice) from error
        method_class = getattr(module, class_name, None)

    # Check the class.
    if not (isinstance(method_class, type) and issubclass(method_class, Method)):
        advice = f"write class MyMethod(Method); {MANUAL}"
        available = methods_in(module)
        if available:
            names = " and ".join(f"{source}:{available_name}" for available_name in available)
            advice = f"{source} has {names}"
        raise UsageError(f'{name}: "{class_name}" is not a subclass of Method', advice=advice)
    for function_name in ("encode", "loss"):
        if getattr(getattr(method_class, function_name), "__isabstractmethod__", False):
            raise UsageError(f"{name}: the class does not define {function_name}", advice=MANUAL)

    # The code is recorded. That of a file is also copied to the checkpoint.
    file = str(module.__file__)
    if is_file:
        file = source
    content = Path(file).read_bytes()
    code = None
    if is_file:
        code = content
    with errors_in(file):
        complete(method_class)
    digest = hashlib.sha256(content).hexdigest()[:16]
    return LoadedMethod(method_class, f"{Path(file).name}:{class_name}", file, digest, code)


def methods_in(module: ModuleType) -> list[str]:
    """Return the names of the methods that a module defines."""
    from sentkit.training.method import Method

    names: list[str] = []
    for name, value in vars(module).items():
        if (
            isinstance(value, type)
            and issubclass(value, Method)
            and value.__module__ == module.__name__
        ):
            names.append(name)
    return names


def module_of(path: str) -> ModuleType:
    """Return the module of a file. No bytecode is written: the file can be in a checkpoint."""
    name = f"sentkit_user_{Path(path).stem}"
    content = Path(path).read_bytes()
    if b"\0" in content:  # a ValueError in early versions of Python 3.11
        raise SyntaxError("source code string cannot contain null bytes")
    spec = spec_from_file_location(name, path)
    assert spec is not None, path
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    folder = str(Path(path).parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)  # of the files that it imports
    exec(compile(content, path, "exec"), vars(module))
    return module


@contextmanager
def errors_in(path: str) -> Iterator[None]:
    """Turn an error into a message with the line of this file that it passes through; also
    `sys.exit`.

    An error that does not pass through it, such as one in a gradient, has the place that raises it.
    """
    try:
        yield
    except (SentkitError, Interrupted, KeyboardInterrupt, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        # The lines of all files that the error passes through; the last one raises it.
        frames = [
            (frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
        ]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno))
        lines = [line for file, line in frames if Path(file).resolve() == Path(path).resolve()]

        # Errors that are not those of the method.
        if isinstance(error, SystemExit) and raised_signal() is not None:
            raise
        if isinstance(error, OSError) and not lines:
            raise

        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, SystemExit):
            problem = "the method ends the program (SystemExit); raise another error instead"
        if lines:
            raise DataError(problem, source=path, line=lines[-1]) from error
        file, line = frames[-1]
        raise DataError(problem, source=path, advice=f"raised in {file}:{line}") from error


def complete(method_class: "type[Method]") -> None:
    """Add the setting `readout` if the class has only the default readouts; check settings and
    presets.
    """
    from sentkit.training.method import Method

    has_default_readouts = (
        inspect.getattr_static(method_class, "readouts") is vars(Method)["readouts"]
    )
    if has_default_readouts and "readout" not in method_class.Settings.__dataclass_fields__:
        method_class.Settings = make_dataclass(
            "Settings",
            [("readout", str, readout("mean", of_paper=False))],
            bases=(method_class.Settings,),
            frozen=True,
            kw_only=True,
        )
    types = get_type_hints(method_class.Settings)
    for field in fields(method_class.Settings):
        field.type = types[field.name]
        if "note" not in field.metadata:
            advice = f'{field.name}: float = ours(1.0, "meaning")'
            raise TypeError(f"the setting {field.name} has no source; write it as {advice}")
        if field.name in OF_RUN:
            problem = "has the name of a field in the record of every run; rename it"
            raise TypeError(f"the setting {field.name} {problem}")
    setting_notes = notes(method_class.Settings)
    for preset, values in method_class.presets.items():
        for name, value in values.items():
            if name not in setting_notes:
                continue
            refusal = setting_notes[name].refusal(value)
            if refusal is not None:
                raise ValueError(f"{preset}: {name}={value}: {refusal}")
