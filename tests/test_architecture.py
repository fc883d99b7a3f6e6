"""Rules for files, folders and imports. Each test lists all offenders."""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

from sentkit.cli import every_command, groups
from sentkit.manual import help_of

PACKAGE = Path(__file__).parent.parent / "sentkit"
FILES = sorted(PACKAGE.rglob("*.py"))

# who -> whom. Read a line as "formats may import errors". A layer may always import itself.
MAY_IMPORT = {
    "__init__": "encoder",
    "encoder": "errors model",
    "errors": "",
    "digits": "",
    "escaping": "",
    "flag_values": "errors",
    "console": "digits escaping errors formats",
    "flags": "process flag_values errors console formats metrics model plots training",
    "formats": "arrays digits escaping errors",
    "arrays": "",
    "transforms": "arrays digits errors formats",
    "metrics": "arrays digits errors formats transforms",
    "labels": "arrays digits errors formats metrics transforms",
    "reports": "arrays digits errors escaping formats metrics labels model papers",
    "plots": "arrays digits errors escaping formats metrics transforms",
    "augment": "errors flag_values",
    "model": "arrays errors formats process transforms",
    "training": "arrays errors flag_values formats metrics model papers process transforms",
    "commands": "flags flag_values errors digits console process formats transforms metrics labels reports"
    " plots augment model training",
    "process": "errors",
    "cli": "flag_values escaping __init__ completion manual errors console flags commands process formats",
    "manual": "__init__ cli",
    "completion": "commands formats training",
    "method": "formats training",
    "papers": "arrays console errors flags formats model plots training transforms",
    "__main__": "cli process",
}
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
    "metrics": {"neighbours": set()},
    "model": {
        "text": set(),
        "transformer": {"text"},
        "checkpoint": {"text", "transformer"},
        "static": {"text"},
    },
    "training": {"data": set(), "loop": {"data"}, "methods": {"data", "loop"}, "runs": {"data", "loop"}},
    "labels": {"clusters": set(), "probes": set()},
}
# End of the folders inside a layer.
TORCH_LIVES_IN = {"papers", "training", "model/transformer", "model/checkpoint", "model/translation"}
TORCH_LIVES_IN |= {"metrics/device"}
ONLY_INSIDE_FUNCTIONS = {"sklearn", "scipy", "transformers", "zstandard", "rich", "huggingface_hub"}
ONLY_INSIDE_FUNCTIONS |= {"faiss", "matplotlib", "pyarrow", "fsspec"}
LARGEST_FILE = 500  # lines
LARGEST_FOLDER = 13  # files, without __init__; lists of one kind may be longer
LISTS = {"commands", "training/methods"}
FOLDERS = sorted({path.parent for path in FILES} - {PACKAGE})


@cache
def trees():
    """The statements of each file."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def imports(tree):
    """The modules that these statements import, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "sentkit":
            yield from (f"sentkit.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def imports_at_the_top(tree):
    """The same of statements that run when the file is imported."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(ast.Module([node], []))
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            yield from imports_at_the_top(
                ast.Module([n for n in node.body if not isinstance(n, functions)], [])
            )


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def folder(path):
    return path.parent.relative_to(PACKAGE).as_posix()


def is_below(path, folders):
    own = path.relative_to(PACKAGE).with_suffix("").as_posix()
    return any(f"{own}/".startswith(f"{each}/") for each in folders)


def module_of(path):
    return ".".join(["sentkit", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def test_layers_import_one_way():
    """A module imports only the layers below its own."""
    wrong = []
    for path, tree in trees().items():
        names = [name.split(".")[1] for name in imports(tree) if name.startswith("sentkit.")]
        layers = {name if name in MAY_IMPORT else "__init__" for name in names} - {layer(path)}
        allowed = MAY_IMPORT.get(layer(path), "").split()
        wrong += [f"{module_of(path)} imports {each}" for each in layers - {*allowed}]

    assert not wrong


def test_only_some_folders_import_torch_and_transformers():
    wrong = []
    for path, tree in trees().items():
        used = {name.partition(".")[0] for name in imports(tree)}
        # transformers reads a tokenizer that has only a vocabulary file, without torch.
        allowed = {"torch": TORCH_LIVES_IN, "transformers": TORCH_LIVES_IN | {"model/text"}}
        wrong += [
            f"{module_of(path)} imports {each}"
            for each, folders in allowed.items()
            if each in used and not is_below(path, folders)
        ]

    assert not wrong


def test_only_the_catalogue_names_a_paper():
    """Code that exists because of one paper is in its folder; few files import anything of papers."""
    papers = {path.name for path in FOLDERS if path.parent == PACKAGE / "papers"}
    others = {path for path in FILES if PACKAGE / "papers" not in path.parents}
    known = {module_of(path) for path in others if "sentkit.papers" in " ".join(imports(trees()[path]))}
    reports = {f"sentkit.reports.{name}" for name in ("measure", "suites", "tables")}
    wrong = [
        f"{module_of(path)} imports {name}"
        for path, tree in trees().items()
        for name in imports(tree)
        if (own := re.match(r"sentkit\.papers\.(\w+)", name)) and own[1] in papers
        if PACKAGE / "papers" / own[1] not in path.parents and path != PACKAGE / "papers/__init__.py"
    ]

    assert papers
    assert not wrong
    assert known == reports | {"sentkit.training.catalogue"}


def test_papers_and_their_settings_are_known_without_torch():
    light = ["training/catalogue.py", "training/settings.py"]
    papers = sorted((PACKAGE / "papers").glob("*/paper.py"))
    wrong = [
        path for path in (*papers, *(PACKAGE / each for each in light)) if "torch" in imports(trees()[path])
    ]

    assert papers
    assert not wrong


def test_large_libraries_are_imported_inside_functions():
    """So only the commands that use them wait for them."""
    wrong = [
        f"{module_of(path)} imports {name}"
        for path, tree in trees().items()
        for name in imports_at_the_top(tree)
        if name.partition(".")[0] in ONLY_INSIDE_FUNCTIONS
    ]

    assert not wrong


def test_files_are_small():
    sizes = {module_of(path): len(path.read_text().splitlines()) for path in FILES}

    assert not {name: size for name, size in sizes.items() if size > LARGEST_FILE}
    assert len((PACKAGE / "README.md").read_text().splitlines()) <= 200


def test_only_console_and_commands_print():
    """Other layers have no print, no typer and no write to a stream of the process."""
    wrong = []
    for path, tree in trees().items():
        nodes = list(ast.walk(tree))
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" for node in nodes):
            wrong.append(f"{module_of(path)} calls print")
        streams = [
            node
            for node in nodes
            if isinstance(node, ast.Attribute)
            and node.attr == "write"
            and isinstance(node.value, ast.Attribute)
            and node.value.attr in ("stdout", "stderr")
        ]
        if streams and layer(path) not in {"console", "cli"}:
            wrong.append(f"{module_of(path)} writes to a stream")
        with_typer = {"cli", "commands", "flags", "manual"}
        if "typer" in imports(tree) and layer(path) not in with_typer:
            wrong.append(f"{module_of(path)} imports typer")

    assert not wrong


def test_every_layer_has_its_line():
    assert {layer(path) for path in FILES} <= MAY_IMPORT.keys()


def test_every_file_in_commands_is_a_command():
    """A group of commands is one file; its commands are the functions in SUBCOMMANDS."""
    names = [path.stem for path in (PACKAGE / "commands").glob("*.py") if path.stem != "__init__"]

    assert {name.replace("_", "-") for name in names} == {name.split()[0] for name in every_command()}


def test_every_help_begins_with_a_sentence_and_examples():
    """The first example runs this command."""
    texts = {name: command.__doc__ for name, command in every_command().items()}
    wrong = []
    for name, text in (texts | {name: module.__doc__ for name, module in groups().items()}).items():
        summary, found = text.splitlines()[0], help_of(f"sentkit {name}", "")
        if summary[-1:] != "." or f"sentkit {name}" not in found.examples[0]:
            wrong.append(name)

    assert not wrong


def files_imported(tree):
    """The files of the package that these statements import, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (MODULES[alias.name] for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                yield MODULES.get(f"{node.module}.{alias.name}", MODULES[node.module])


def test_folders_of_a_layer_import_one_way():
    """A folder imports only the folders beside it that INSIDE lists."""
    wrong = []
    for path, tree in trees().items():
        layer_name, _, inside = folder(path).partition("/")
        own = inside.partition("/")[0]
        for other in files_imported(tree):
            other_layer, _, rest = folder(other).partition("/")
            theirs = rest.partition("/")[0]
            beside = own and theirs and own != theirs and layer_name == other_layer in INSIDE
            if beside and theirs not in INSIDE[layer_name].get(own, set()):
                wrong.append(f"{module_of(path)} imports {module_of(other)}")

    assert not wrong


def test_no_folder_imports_itself_through_another():
    """INSIDE has no circles, and names the folders that are there."""
    for layer_name, below in INSIDE.items():
        list(graphlib.TopologicalSorter(below).static_order())
        present = {path.name for path in FOLDERS if path.parent == PACKAGE / layer_name}
        assert present == below.keys()


def test_no_modules_import_each_other():
    """The imports at the top of the files have no circle."""
    graph = {}
    for path, tree in trees().items():
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        graph[path] = {other for other in files_imported(ast.Module(top, [])) if other != path}

    list(graphlib.TopologicalSorter(graph).static_order())


def test_folders_are_small():
    places = [PACKAGE, *FOLDERS]
    sizes = {str(place.relative_to(PACKAGE)): len([*place.glob("*.py")]) - 1 for place in places}

    assert not {name: size for name, size in sizes.items() if size > LARGEST_FOLDER and name not in LISTS}


def test_every_folder_states_its_input_and_output():
    """Its __init__ begins "Takes X and returns Y"."""
    missing = []
    for place in FOLDERS:
        name = place.relative_to(PACKAGE).as_posix()
        first = (ast.get_docstring(trees()[place / "__init__.py"]) or "").partition("\n")[0]
        if not re.match(r"Takes .+ and returns .+\.", first):
            missing.append(name)

    assert not missing


def test_tests_are_in_the_folder_of_their_module():
    """A test named after a module is in the folder of that module."""
    tests = PACKAGE.parent / "tests"
    modules = {}
    for path in FILES:
        modules.setdefault(path.stem, set()).add(path.parent.relative_to(PACKAGE))
    wrong = []
    for path in tests.rglob("test_*.py"):
        place = path.parent.relative_to(tests)
        homes = modules.get(path.stem.removeprefix("test_"), set())
        layer_homes = {home for home in homes if home.parts[:1] == place.parts[:1]}
        if place.parts and layer_homes and place not in layer_homes:
            wrong.append(str(path.relative_to(tests)))

    assert not wrong
