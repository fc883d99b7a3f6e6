"""Methods of users: `./mine.py:MyMethod` is a class in a file, `package.module:MyMethod` one of a package."""

import hashlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sentkit.errors import DataError, NoInputError, SentkitError, UsageError

if TYPE_CHECKING:
    from sentkit.training.method import Method

NEEDED = ("encode", "loss", "reads")  # what a method must define


@dataclass(frozen=True, slots=True)
class LoadedMethod:
    kind: "type[Method]"
    name: str  # for a method of a user: the file without its folder, and the class
    file: str | None = None  # of a user
    digest: str | None = None  # of this file


def load_user_method(name: str) -> LoadedMethod:
    """Import the file or module and return the class. This imports torch."""
    from sentkit.training.method import Method

    place, _, kind_name = name.rpartition(":")
    path = place if place.endswith(".py") else None
    if path and not Path(path).is_file():
        raise NoInputError(f"{path}: no such file")
    with errors_in(path):
        try:
            module = module_of(path) if path else import_module(place)
        except ModuleNotFoundError as error:
            if path or not f"{place}.".startswith(f"{error.name}."):
                raise
            advice = "give a file, such as ./mine.py:MyMethod, or install the package"
            raise UsageError(f"{name}: no module {error.name}", advice=advice) from error
    kind, file = getattr(module, kind_name, None), path or str(module.__file__)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        advice = "write class MyMethod(Method); see: man 7 sentkit-method"
        raise UsageError(f'{name}: "{kind_name}" is not a subclass of Method', advice=advice)
    for each in NEEDED:
        if getattr(getattr(kind, each), "__isabstractmethod__", False):
            advice = "see: man 7 sentkit-method"
            raise UsageError(f"{name}: the class does not define {each}", advice=advice)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return LoadedMethod(kind, f"{Path(file).name}:{kind_name}", file, digest)


def module_of(path: str) -> ModuleType:
    name = f"sentkit_user_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@contextmanager
def errors_in(path: str | None) -> Iterator[None]:
    """Turn an error that passes through this file into a message with its line."""
    try:
        yield
    except SentkitError:
        raise
    except Exception as error:
        if path is None or (line := line_in(path, error)) is None:
            raise
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DataError(problem, source=path, line=line) from error


def line_in(path: str, error: Exception) -> int | None:
    """Return the last line of the file in the traceback of the error, or the line of a syntax error."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((str(error.filename), error.lineno))
    lines = [line for name, line in places if Path(name).resolve() == Path(path).resolve()]
    return lines[-1] if lines else None
