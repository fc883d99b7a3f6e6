"""Methods of users: the import of their class, and checks of its settings and of the values of its hooks.

A fault in the class is a DataError with its file and line. Importing this module does not import torch.
"""

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Self, Union, get_args, get_origin, get_type_hints, is_typeddict

import orjson

from sentkit.errors import DataError, NoInputError, SentkitError, UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.process import raised_signal
from sentkit.signals import Interrupted
from sentkit.training.settings import KINDS, Recipe, notes, readout

if TYPE_CHECKING:
    from sentkit.training.method import Method

NEEDED = ("encode", "loss", "reads")  # a method must define these
MANUAL = "see: man 7 sentkit-method"
NUMBERS = {float: Real, int: Integral}


@dataclass(frozen=True, slots=True)
class LoadedMethod:
    kind: "type[Method]"
    name: str  # for a method of a user: the file without its folder, and the class
    file: str | None = None  # of a user
    digest: str | None = None  # of this file
    line: int | None = None  # of the class
    code: bytes | None = None  # this file, unless it is part of a package


def file_of_method(name: str) -> str:
    """Return the file of a user's method in its checkpoint: `mine.py` of `mine.py:MyMethod`."""
    return name.rpartition(":")[0]


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
    with errors_in(path):
        try:
            module = module_of(path) if path else import_module(place)
        except ModuleNotFoundError as error:
            if path or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise UsageError(f"{name}: no module {error.name}", advice=advice) from error
        kind = getattr(module, kind_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        advice = f"write class MyMethod(Method); {MANUAL}"
        raise UsageError(f'{name}: "{kind_name}" is not a subclass of Method', advice=advice)
    for each in NEEDED:
        if getattr(getattr(kind, each), "__isabstractmethod__", False):
            raise UsageError(f"{name}: the class does not define {each}", advice=MANUAL)
    file, line = path or str(module.__file__), inspect.getsourcelines(kind)[1]
    code = Path(file).read_bytes()
    digest = hashlib.sha256(code).hexdigest()[:16]
    with errors_in(file, line):
        fault = next(faults_of_class(kind), None)
    if fault:
        raise DataError(fault, source=file, line=line, advice=MANUAL)
    own = checked(kind, file, line), f"{Path(file).name}:{kind_name}", file, digest, line
    return LoadedMethod(*own, code if path else None)


def module_of(path: str) -> ModuleType:
    name = f"sentkit_user_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    if b"\0" in (before := Path(path).read_bytes().partition(b"\0"))[1]:  # Python's error has no line
        raise DataError("contains a NUL byte", source=path, line=before[0].count(b"\n") + 1)
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


# Errors.


@contextmanager
def errors_in(path: str | None, line: int | None = None) -> Iterator[None]:
    """Turn an error that passes through this file into a message with its line; also `sys.exit`.

    Without a path, errors pass unchanged. With an empty path, the file is the last one outside of sentkit.
    With a line, other errors have it, because a fault of a method can show later, such as in a gradient.
    """
    try:
        yield
    except (SentkitError, Interrupted, KeyboardInterrupt, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        if path is None or (isinstance(error, SystemExit) and raised_signal() is not None):
            raise
        places, advice = places_in(path, error), None
        if not places:
            if line is None or isinstance(error, OSError):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            places, advice = [(path, line)], f"raised in {last.filename}:{last.lineno}"
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, SystemExit):
            problem = "the method ends the program (SystemExit); raise another error instead"
        raise DataError(problem, source=places[-1][0], line=places[-1][1], advice=advice) from error


def places_in(path: str, error: BaseException) -> list[tuple[str, int | None]]:
    """Return the places in the file that the error passes through; those of a syntax error are last."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    if path:
        return [(path, line) for name, line in frames if Path(name).resolve() == Path(path).resolve()]
    return [place for place in frames if not place[0].startswith("<") and not of_sentkit(place[0])]


def of_sentkit(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parents[1])


# Checks of a class, and of the values of its hooks. They yield faults, of which the first one is reported.


def faults_of_class(kind: "type[Method]") -> Iterator[str]:
    """Check the attributes of a class. Add the setting `readout` if it has only the default readouts."""
    from sentkit.training.method import Method, Needs

    yield from mismatches(kind.needs, Needs, "needs")
    yield from mismatches(kind.presets, Mapping[str, Mapping[str, Any]], "presets")
    for name, original in hooks_of(Method):  # type: ignore[type-abstract]
        hook = inspect.getattr_static(kind, name)
        if not callable(getattr(kind, name)):
            yield f"{name} is not a function"
        if isinstance(original, classmethod) and isinstance(hook, FunctionType):
            yield f"{name} is a method of the class; write @classmethod before it"
    settings = kind.Settings
    if not (isinstance(settings, type) and issubclass(settings, Recipe)):
        yield "Settings is not a subclass of Recipe"
    if vars(settings).get("__annotations__") and "__dataclass_params__" not in vars(settings):
        yield "Settings is not a dataclass; write @dataclass(frozen=True, kw_only=True) before it"
    of_readouts = inspect.getattr_static(kind, "readouts")
    if "readout" not in settings.__dataclass_fields__ and of_readouts is vars(Method)["readouts"]:
        field = ("readout", str, readout("mean", of_paper=False))
        kind.Settings = make_dataclass("Settings", [field], bases=(settings,), frozen=True, kw_only=True)
    yield from faults_of_settings(kind)


def faults_of_settings(kind: "type[Method]") -> Iterator[str]:
    """Check the types, sources and limits of the settings, and the values of presets."""
    hints = get_type_hints(kind.Settings)
    for each in fields(kind.Settings):
        each.type = hints[each.name]  # annotations can be strings
        if "note" not in each.metadata or not set(get_args(each.type) or (each.type,)) <= {*KINDS, NoneType}:
            how = f'{each.name}: float = ours(1.0, "meaning")'
            yield f"the setting {each.name} has no source or an unknown type; write it as {how}"
    try:
        rules = notes(kind.Settings)
    except KeyError as error:
        yield f"the setting {error.args[0]} has no meaning"
    defaults = {each.name: each.default for each in fields(kind.Settings)}
    for where, values in {"Settings": defaults, **kind.presets}.items():
        for name, value in values.items():
            if name not in rules:
                yield f'the preset "{where}" has the unknown setting "{name}"'
            yield from mismatches(value, hints[name], f"{where}: {name}")
            if value is not None and (refusal := rules[name].refusal(value)):
                yield f"{where}: {name}={value}: {refusal}"


def hooks_of(method: "type[Method]") -> list[tuple[str, Any]]:
    """Return the functions that a user can override."""
    found = [each for each in vars(method).items() if isinstance(each[1], FunctionType | classmethod)]
    return [each for each in found if not each[0].startswith("_") or each[0] == "__init__"]


def checked(kind: "type[Method]", file: str, line: int) -> "type[Method]":
    """Return a subclass that checks the values of the hooks of the user."""
    from sentkit.training.method import Method

    own: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    for name, original in hooks_of(Method):  # type: ignore[type-abstract]
        hook = inspect.getattr_static(kind, name)
        if hook is original and name != "build":
            continue
        function = getattr(hook, "__func__", hook)
        place, code = (file, line), getattr(inspect.unwrap(function), "__code__", None)
        if code is not None and not of_sentkit(code.co_filename):
            same = Path(code.co_filename).resolve() == Path(file).resolve()
            place = (file if same else code.co_filename), code.co_firstlineno
        call = checking(name, function, place, get_type_hints(getattr(Method, name)).get("return"))
        own[name] = type(hook)(call) if isinstance(hook, classmethod | staticmethod) else call
    return type(kind.__name__, (kind,), own)


def checking(name: str, hook: Callable[..., Any], place: tuple[str, int], expected: Any) -> Any:
    @wraps(hook)
    def call(*given: Any, **named: Any) -> Any:
        with errors_in(*place):
            value = hook(*given, **named)
            fault = None if expected is NoneType else next(mismatches(value, expected, f"{name}()"), None)
            if fault is None and name in FAULTS:
                fault = next(iter(FAULTS[name](value, *given)), None)
        if fault:
            raise DataError(fault, source=place[0], line=place[1], advice=MANUAL)
        return value

    return call


types_of: Any = cache(get_type_hints)


def mismatches(value: Any, expected: Any, name: str) -> Iterator[str]:
    """Compare a value with an annotation and yield the parts that have another type."""
    from sentkit.training.method import Method

    kind, parts = get_origin(expected) or expected, get_args(expected)
    if kind is Any:
        return
    if kind in (Union, UnionType):
        found = [next(mismatches(value, part, name), None) for part in parts]
        yield from found[:1] if None not in found else ()  # type: ignore[misc]
        return
    plain = Method if kind is Self else dict if is_typeddict(kind) else NUMBERS.get(kind, kind)
    if not has_type(value, plain):
        has = "None" if value is None else f"of the type {type(value).__name__}"
        yield f"{name} is {has}, expected {(kind if kind in NUMBERS else plain).__name__}"
    if is_typeddict(kind):
        for key, hint in types_of(kind).items():
            yield from mismatches(value.get(key), hint, f'{name}["{key}"]')
    elif is_dataclass(kind) and kind.__module__.startswith("sentkit.training"):
        for key, hint in types_of(kind).items():
            yield from mismatches(getattr(value, key), hint, f"{name}.{key}")
    elif kind is not Callable:
        yield from mismatches_within(value, parts, name)


def has_type(value: Any, kind: Any) -> bool:
    if kind in (Sequence, Collection):  # also an array or a tensor
        return hasattr(value, "__len__") and not isinstance(value, str | Mapping)
    if kind is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    return isinstance(value, kind)


def mismatches_within(value: Any, parts: Sequence[Any], name: str) -> Iterator[str]:
    """The same for the parts of a mapping, of a tuple and of a list."""
    if isinstance(value, Mapping) and parts:
        for key, each in value.items():
            yield from mismatches(each, parts[1], f'{name}["{key}"]')
    elif len(parts) > 1 and parts[-1] is not ...:
        if len(value) != len(parts):
            yield f"{name} has {len(value)} values, expected {len(parts)}"
        for number, (each, part) in enumerate(zip(value, parts, strict=True)):
            yield from mismatches(each, part, f"{name}[{number}]")
    elif parts and parts[0] is not Any:
        for number, each in enumerate(value):
            yield from mismatches(each, parts[0], f"{name}[{number}]")


def faults_of_outputs(outputs: Any, method: Any, batch: Any) -> Iterator[str]:
    for name, value in outputs.items():
        if value.shape[:1] != (len(batch),):
            yield f'encode()["{name}"] has the shape {tuple(value.shape)}, expected {len(batch)} rows'
    yield from without_gradient("encode", outputs.values())


def faults_of_terms(terms: Any, method: Any, *given: Any) -> Iterator[str]:
    yield from faults_of_sums("loss", {f'["{name}"].sum': term.sum for name, term in terms.items()})
    if method.needs.row_wise and len({term.weight for term in terms.values()}) > 1:
        yield "loss() has terms of different weights, but needs.row_wise divides them by one"


def faults_of_sums(hook: str, sums: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sums.items():
        if value.dim():
            yield f"{hook}(){name} has the shape {tuple(value.shape)}, expected one number"
    yield from without_gradient(hook, sums.values())


def without_gradient(hook: str, values: Collection[Any]) -> Iterator[str]:
    import torch

    if not values:
        yield f"{hook}() is empty"
    if torch.is_grad_enabled() and not any(value.requires_grad for value in values):
        yield f"{hook}() has no gradient: it does not depend on the trained weights"


def faults_of_draws(draws: Any, method: Any, batch: Any, random: Any) -> Iterator[str]:
    for name, values in draws.items():
        if len(values) != len(batch):
            yield f'draw()["{name}"] has {len(values)} values, expected {len(batch)}'


def faults_of_readouts(names: Any, *given: Any) -> Iterator[str]:
    try:
        found = [parse_readout(name) for name in ([names] if isinstance(names, str) else names)]
    except UsageError as error:
        yield str(error)
    yield from empty("readouts", found)


def faults_of_json(name: str, value: Any) -> Iterator[str]:
    try:
        if orjson.loads(orjson.dumps(value)) == value:
            return
    except (TypeError, ValueError):
        pass
    yield f"{name} cannot be saved as JSON: use strings, numbers and lists"


def empty(hook: str, values: Any) -> Iterator[str]:
    yield from () if len(values) else (f"{hook}() is empty",)


FAULTS: dict[str, Callable[..., Iterable[str]]] = {
    "identity": lambda values, *given: faults_of_json("identity()", values),
    "reads": lambda reads, *given: empty("reads", reads.kinds),
    "readouts": faults_of_readouts,
    "dev_readout": faults_of_readouts,
    "encoders": lambda encoders, *given: empty("encoders", encoders),
    "draw": faults_of_draws,
    "encode": faults_of_outputs,
    "loss": faults_of_terms,
    "penalty": lambda sums, *given: faults_of_sums("penalty", sums) if sums else (),
    "groups": lambda groups, *given: empty("groups", groups),
    "finished": lambda finished, *given: faults_of_json("finished().config", finished.config),
}  # hook -> further checks of a value
