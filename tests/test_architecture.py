"""Rules for files, folders and imports. Each test lists all offenders."""

import ast
import graphlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from sentkit.cli import every_command, groups
from sentkit.flags.help_texts import help_of

PACKAGE = Path(__file__).parent.parent / "sentkit"
FILES = sorted(PACKAGE.rglob("*.py"))

# who -> whom. Read a line as "formats may import errors". A layer may always import itself.
MAY_IMPORT = {
    "__init__": "encoder",
    "encoder": "errors metrics model process",
    "errors": "",
    "digits": "",
    "escaping": "",
    "flag_values": "errors",
    "console": "digits escaping formats",
    "flags": "completion process flag_values errors console formats metrics model plots",
    "formats": "arrays digits escaping errors",
    "arrays": "",
    "transforms": "arrays errors formats",
    "metrics": "arrays digits errors formats transforms",
    "labels": "arrays digits errors formats metrics transforms",
    "reports": "arrays digits errors escaping formats metrics labels model papers",
    "plots": "arrays digits errors escaping formats metrics transforms",
    "augment": "errors flag_values",
    "model": "arrays errors formats process transforms",
    "training": "errors flag_values formats metrics model papers process transforms",
    "commands": "completion flags flag_values errors digits escaping console process formats "
    "transforms metrics labels reports plots augment model training",
    "process": "errors",
    "cli": "escaping __init__ completion errors console flags commands process formats",
    "manual": "__init__ cli flags formats",
    "completion": "formats training",
    "method": "formats training",
    "papers": "arrays console errors flags formats model plots training transforms",
    "__main__": "cli process",
}
# `training/catalogue.py` lists the methods of papers, which are subclasses of `Method` in
# `training`.
CLOSES_CIRCLES = ("training", "papers")
# Inside a layer: folder -> folders beside it that its files may import. Files directly in
# the layer's folder are its entry points, and what its folders share.
INSIDE = {
    "formats": {
        "rows": set(),
        "outputs": {"rows"},
        "vectors": {"rows", "outputs"},
        "lexicons": {"rows", "vectors"},
        "checkpoints": {"outputs", "vectors", "lexicons"},
    },
    "metrics": {"neighbours": set(), "comparison": {"neighbours"}},
    "model": {
        "text": set(),
        "transformer": {"text"},
        "checkpoint": {"text", "transformer"},
        "causes": {"text", "transformer"},
        "static": {"text"},
        "runs": {"text"},
    },
    "training": {
        "data": set(),
        "loop": {"data"},
        "methods": {"data", "loop"},
        "runs": {"data", "loop"},
    },
    "labels": {"clusters": set(), "probes": set()},
}
# End of the folders inside a layer.
TORCH_LIVES_IN = {
    "papers",
    "training",
    "model/transformer",
    "model/checkpoint",
    "model/causes",
    "model/translation",
}
TORCH_LIVES_IN |= {"metrics/device"}
ONLY_INSIDE_FUNCTIONS = {"sklearn", "scipy", "transformers", "zstandard", "rich", "huggingface_hub"}
ONLY_INSIDE_FUNCTIONS |= {"faiss", "matplotlib", "pyarrow", "fsspec", "httpx2"}
LARGEST_FILE = 600  # lines of 100 columns
LARGEST_FOLDER = 13  # files, without __init__; lists of one kind may be longer
LISTS = {"commands", "training/methods"}
WITH_TYPER = {"cli", "commands", "flags"}
FOLDERS = sorted({path.parent for path in FILES} - {PACKAGE})
OF_PAPERS = PACKAGE / "papers"
IMPORT = ast.Import | ast.ImportFrom


def module_of(path):
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(["sentkit", *names]).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(tree):
    """The modules that these statements import, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else str(node.module) for name in names)


def top_of(tree):
    """The imports that run when the file is imported."""
    inner = [
        top_of(node) for node in tree.body if isinstance(node, ast.Try | ast.With | ast.ClassDef)
    ]
    return ast.Module([*inner, *(node for node in tree.body if isinstance(node, IMPORT))], [])


# Functions, because reading all files takes seconds, and each worker of xdist imports this file.


@cache
def trees():
    return {path: ast.parse(path.read_text()) for path in FILES}


@cache
def all_imports():
    return {path: {*imports(tree)} for path, tree in trees().items()}


@cache
def imports_at_the_top():
    return {path: {*imports(top_of(tree))} for path, tree in trees().items()}


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_below(path, folders):
    module_path = path.relative_to(PACKAGE).with_suffix("").as_posix()
    return any(f"{module_path}/".startswith(f"{folder}/") for folder in folders)


def offenders(is_wrong, imports_of_files=all_imports):
    """The imports of which this is true, of the path of a file and the name of a module."""
    pairs = [(path, name) for path, names in imports_of_files().items() for name in names]
    return [(module_of(path), name) for path, name in pairs if is_wrong(path, name)]


def test_layers_import_one_way():
    def is_wrong(path, name):
        own_layer = layer(path)
        other_layer = name in MODULES and layer(MODULES[name])
        return (
            other_layer
            and other_layer != own_layer
            and other_layer not in MAY_IMPORT[own_layer].split()
        )

    assert {layer(path) for path in FILES} <= MAY_IMPORT.keys()
    assert offenders(is_wrong) == []


def test_only_some_folders_import_torch_and_transformers():
    # transformers reads a tokenizer that has only a vocabulary file, without torch.
    allowed = {"torch": TORCH_LIVES_IN, "transformers": TORCH_LIVES_IN | {"model/text"}}

    def is_wrong(path, name):
        library = name.partition(".")[0]
        return library in allowed and not is_below(path, allowed[library])

    assert offenders(is_wrong) == []


def test_private_operations_of_torch_are_in_one_file_for_each_device():
    files = []
    for path in FILES:
        if "torch." not in path.read_text():
            continue
        attributes = [node for node in ast.walk(trees()[path]) if isinstance(node, ast.Attribute)]
        if any(re.search(r"^torch\.(ops\.|(\w+\.)*_)", ast.unparse(node)) for node in attributes):
            files.append(path.name)

    assert files == ["cpu_operations.py", "cuda_operations.py"]


def statements(tree):
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def test_few_files_know_urls():
    """A URL is an open file for all others. Outputs know it to refuse it."""
    modules = {
        module_of(path)
        for path in FILES
        if "sentkit.formats.urls" in " ".join(all_imports()[path]) or "is_url" in path.read_text()
    }

    assert modules == {
        "sentkit.formats.urls",
        "sentkit.formats.files",
        "sentkit.formats.outputs.outputs",
    }
    assert statements(trees()[PACKAGE / "formats/urls.py"]) <= 80


def test_only_the_catalogue_names_a_paper():
    """Code that exists because of one paper is in its folder; few files import anything of
    papers.
    """
    papers = {path.name for path in FOLDERS if path.parent == OF_PAPERS}
    other_files = {path for path in FILES if OF_PAPERS not in path.parents}
    modules = {
        module_of(path) for path in other_files if "sentkit.papers" in " ".join(all_imports()[path])
    }

    def is_wrong(path, name):
        imported = re.match(r"sentkit\.papers\.(\w+)", name)
        return (
            imported
            and imported[1] in papers
            and OF_PAPERS / imported[1] not in path.parents
            and path != OF_PAPERS / "__init__.py"
        )

    assert papers
    assert offenders(is_wrong) == []
    reports = {f"sentkit.reports.{name}" for name in ("measure", "suites", "tables")}
    assert modules == reports | {"sentkit.training.catalogue"}


def test_papers_and_their_settings_are_known_without_torch():
    light = [PACKAGE / f"training/{name}.py" for name in ("catalogue", "settings")]
    light += OF_PAPERS.glob("*/paper.py")

    assert len(light) > 2
    assert [path for path in light if "torch" in all_imports()[path]] == []


def test_large_libraries_are_imported_inside_functions():
    """So only the commands that use them wait for them."""
    assert (
        offenders(
            lambda _, name: name.partition(".")[0] in ONLY_INSIDE_FUNCTIONS, imports_at_the_top
        )
        == []
    )


def test_files_and_folders_are_small():
    lines = {module_of(path): len(path.read_text().splitlines()) for path in FILES}
    files_of_folder = {
        folder.relative_to(PACKAGE).as_posix(): [*folder.glob("*.py")]
        for folder in [PACKAGE, *FOLDERS]
    }

    assert {name: count for name, count in lines.items() if count > LARGEST_FILE} == {}
    assert {
        name for name, files in files_of_folder.items() if len(files) - 1 > LARGEST_FOLDER
    } <= LISTS
    assert len((PACKAGE / "README.md").read_text().splitlines()) <= 180


def test_only_console_and_commands_print():
    """Other layers have no print, no typer and no write to a stream of the process."""
    wrong = offenders(lambda path, name: name == "typer" and layer(path) not in WITH_TYPER)
    for path, tree in trees().items():
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        streams = {call for call in calls if re.search(r"\bstd(out|err)\.write$", call)}
        bad = calls & {"print"} | (streams if layer(path) not in {"console", "cli"} else set())
        wrong += [(module_of(path), call) for call in bad]

    assert wrong == []


def test_every_file_in_commands_is_a_command():
    """A group of commands is one file; its commands are its functions that take the console."""
    names = [path.stem for path in (PACKAGE / "commands").glob("*.py") if path.stem != "__init__"]

    assert {name.replace("_", "-") for name in names} == {
        name.split()[0] for name in every_command()
    }


def test_every_help_begins_with_a_sentence_and_examples():
    """The first example runs this command."""
    texts = {
        name: help_of(f"sentkit {name}", inspect.getdoc(command))
        for name, command in (every_command() | groups()).items()
    }
    examples = {name: text.examples[0] for name, text in texts.items()}

    assert [name for name, text in texts.items() if text.summary[-1:] != "."] == []
    assert [name for name, example in examples.items() if f"sentkit {name}" not in example] == []


def test_folders_of_a_layer_import_one_way():
    """A folder imports only the folders beside it that INSIDE lists. INSIDE has no circles."""

    def is_wrong(path, name):
        imported_path = MODULES.get(name, path)
        own_layer, *own_folders = path.relative_to(PACKAGE).parts[:-1] or ("",)
        other_layer, *other_folders = imported_path.relative_to(PACKAGE).parts[:-1] or ("",)
        if own_layer != other_layer or own_layer not in INSIDE:
            return False
        if not own_folders or not other_folders or own_folders[0] == other_folders[0]:
            return False
        return other_folders[0] not in INSIDE[own_layer].get(own_folders[0], set())

    assert offenders(is_wrong) == []
    for layer_name, below in INSIDE.items():
        list(graphlib.TopologicalSorter(below).static_order())
        assert below.keys() == {
            path.name for path in FOLDERS if path.parent == PACKAGE / layer_name
        }


def test_the_package_has_no_circles():
    """Also with the imports inside functions, and with those that only type checkers see."""
    imported = {
        name: all_imports()[path] & MODULES.keys() - {name} for name, path in MODULES.items()
    }

    list(graphlib.TopologicalSorter(imported).static_order())


def test_one_import_closes_all_circles_of_layers():
    """A layer is many files. Without the import in CLOSES_CIRCLES, layers have no circle."""
    graph = {}
    for path in FILES:
        for name in all_imports()[path] & MODULES.keys():
            if layer(MODULES[name]) != layer(path):
                graph.setdefault(layer(path), set()).add(layer(MODULES[name]))
    importing, imported = CLOSES_CIRCLES
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()
    graph[importing].remove(imported)

    graphlib.TopologicalSorter(graph).prepare()


def test_the_drawing_of_the_layers_is_true():
    """In the README, a layer imports only those of lines above it, except by CLOSES_CIRCLES."""
    lines = (PACKAGE / "README.md").read_text().splitlines()
    of_layers = [line for line in lines if re.match(r" {4}\w.* {3}", line)]
    layers = [re.split(" {3,}", line.strip())[0].split() for line in of_layers]
    line_of = {
        name.removesuffix("/"): number for number, names in enumerate(layers) for name in names
    }

    def is_wrong(path, name):
        if name not in MODULES or (layer(path), layer(MODULES[name])) == CLOSES_CIRCLES:
            return False
        return (
            layer(MODULES[name]) != layer(path)
            and line_of[layer(MODULES[name])] >= line_of[layer(path)]
        )

    assert line_of.keys() == {layer(path) for path in FILES}
    assert offenders(is_wrong) == []


def test_every_folder_states_its_input_and_output():
    """Its __init__ begins "Takes X and returns Y"."""
    texts = {
        folder.name: ast.get_docstring(trees()[folder / "__init__.py"]) or "" for folder in FOLDERS
    }

    assert [
        name
        for name, text in texts.items()
        if not re.match(r"Takes .+\sand returns .+\.", text, re.DOTALL)
    ] == []


def test_tests_are_in_the_folder_of_their_module():
    tests = PACKAGE.parent / "tests"
    wrong = []
    for path in tests.rglob("test_*.py"):
        folder = path.parent.relative_to(tests)
        stem = path.stem.removeprefix("test_")
        homes = {file.parent.relative_to(PACKAGE) for file in FILES if file.stem == stem}
        homes = {home for home in homes if home.parts[:1] == folder.parts[:1]}
        if folder.parts and homes and folder not in homes:
            wrong.append(str(path.relative_to(tests)))

    assert wrong == []
