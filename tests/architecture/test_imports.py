"""In: the source. Out: who may import whom, as docs/architecture.md says it; sizes and names of files and functions."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

pytestmark = pytest.mark.null
REPOSITORY = Path(__file__).parents[2]
OURS = ("specforge", "specforge_kernels")
STANDARD = frozenset(sys.stdlib_module_names)
COMPARED = {"liger_kernel"}  # by benches
OPTIONAL = {"gguf", "accelerate", "triton", *COMPARED}
FORBIDDEN_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "manager", "base_impl"}
MOST_LINES, MOST_PARAMETERS = 400, 6
# Called by torch with the tensors that belong to them, or made of modules: they have the parameters they need.
FREE_NAMES = {"forward", "backward"}

VALUES = ("specforge.dsl.feature",)
WAIST = (
    *("specforge.plan", "specforge.plan_diff", "specforge.settings", "specforge.shipped"),
    "specforge.recording",
    "specforge.target_logits",
)
COMPILER_THIRD = {"attrs", "networkx"}
RUNTIME_THIRD = {
    *(
        "attrs",
        "cattrs",
        "jinja2",
        "numpy",
        "rich",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
        "huggingface_hub",
    ),
    *(OPTIONAL - COMPARED),
}
SERVE_THIRD = {"httpx", "starlette", "uvicorn"}
# what a process without torch may import of the runtime
LIGHT = tuple(
    f"specforge.runtime.{name}"
    for name in (
        *("assignment", "child", "control", "data.agenda", "data.hole", "data.order", "data.prepared", "env"),
        *("executor.layout", "executor.run_order", "executor.work", "store.shared_files"),
    )
)


@attrs.frozen
class Layer:
    """A part of the tree: where it lies, which modules of ours it may import (with those below), and whose else."""

    path: str
    ours: tuple[str, ...]
    third: frozenset[str] = attrs.field(converter=frozenset)


# The most particular path comes first. docs/architecture.md holds the same table in words.
LAYERS = (
    Layer("specforge/dsl", ("specforge.dsl",), {"attrs"}),
    Layer("specforge/settings.py", VALUES, {"attrs"}),
    Layer("specforge/shipped.py", (), set()),
    Layer("specforge/target_logits.py", ("specforge.settings",), set()),
    Layer("specforge/plan.py", (*VALUES, "specforge.settings"), {"attrs", "cattrs"}),
    Layer("specforge/plan_diff.py", (), {"attrs"}),
    Layer("specforge/recording.py", (), {"attrs", "cattrs"}),
    Layer("specforge/compiler", ("specforge.dsl", "specforge.compiler", *WAIST), COMPILER_THIRD),
    Layer("specforge/runtime/control", (*VALUES, *WAIST, *LIGHT), {"attrs", "cattrs", *SERVE_THIRD}),
    Layer("specforge/runtime/capture/worker.py", LIGHT, set()),
    Layer("specforge/runtime/launch.py", LIGHT, {"attrs"}),
    Layer(
        "specforge/runtime/capture/server.py",
        (*VALUES, *WAIST, "specforge.runtime"),
        {"attrs", "numpy", "torch", "starlette"},
    ),
    Layer("specforge/runtime", (*VALUES, *WAIST, "specforge.runtime", "specforge_kernels"), RUNTIME_THIRD),
    Layer("specforge/verbs", ("specforge",), set()),
    Layer("specforge/cli.py", (), set()),
    Layer("specforge/__main__.py", ("specforge.cli",), set()),
    Layer("specforge/__init__.py", (), set()),
    Layer("kernels/specforge_kernels", ("specforge_kernels",), {"numpy", "torch", "triton", *COMPARED}),
    Layer("recipes", ("specforge.dsl",), set()),
)


def files(*folders: str) -> list[str]:
    found = [p for folder in folders for p in (REPOSITORY / folder).rglob("*.py")]
    return sorted(str(p.relative_to(REPOSITORY)) for p in found)


SOURCE = files("specforge", "kernels", "recipes")
PRODUCT = [f for f in SOURCE if not Path(f).name.startswith(("test_", "conftest")) and Path(f).name != "bench.py"]


def tree(file: str) -> ast.Module:
    return ast.parse((REPOSITORY / file).read_text(encoding="utf-8"), filename=file)


def imports(root: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from a import b` gives a.b."""
    for found in ast.walk(root):
        if isinstance(found, ast.Import):
            yield from ((found.lineno, name.name) for name in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert not found.level, f"line {found.lineno}: a relative import"
            yield from ((found.lineno, f"{found.module}.{name.name}") for name in found.names)


def layer(file: str) -> Layer:
    return next(known for known in LAYERS if file == known.path or file.startswith(f"{known.path}/"))


def below(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == a or name.startswith(f"{a}.") for a in allowed)


def test_the_layers_are_there_and_hold_every_file():
    assert len(SOURCE) > 60
    assert all(any(layer(f) is known for f in SOURCE) for known in LAYERS)


@pytest.mark.parametrize("file", PRODUCT)
def test_a_layer_imports_what_it_may(file):
    known = layer(file)
    for line, name in imports(tree(file)):
        top = name.partition(".")[0]
        if top in OURS:
            assert below(name, known.ours), f"{file}:{line} imports {name}; it may import {known.ours}"
        else:
            assert top in STANDARD or top in known.third, f"{file}:{line} imports {name}; it may {set(known.third)}"


@pytest.mark.parametrize("file", [f for f in SOURCE if f.startswith("kernels/") and f not in PRODUCT])
def test_tests_and_benchmarks_of_a_kernel_import_nothing_of_specforge(file):
    for line, name in imports(tree(file)):
        assert name.partition(".")[0] != "specforge", f"{file}:{line} imports {name}"


def test_the_compiler_never_reaches_torch_and_the_runtime_never_the_compiler():
    reached = {f: {name for _, name in imports(tree(f))} for f in PRODUCT}
    compiler = {n for f, names in reached.items() if f.startswith("specforge/compiler") for n in names}
    runtime = {n for f, names in reached.items() if f.startswith("specforge/runtime") for n in names}
    assert not {n for n in compiler if below(n, ("torch", "specforge.runtime", "specforge_kernels"))}
    assert not {n for n in runtime if below(n, ("specforge.compiler",))}
    assert {n for n in runtime if below(n, ("torch",))}, "the test does not see imports"


@pytest.mark.parametrize("file", PRODUCT)
def test_imports_within_functions_are_only_of_optional_packages(file):
    for function in ast.walk(tree(file)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for line, name in imports(function):
                top = name.partition(".")[0]
                assert top in OPTIONAL, f"{file}:{line} imports {name} within {function.name}"


@pytest.mark.parametrize("file", PRODUCT)
def test_optional_packages_are_imported_only_within_functions(file):
    if file.startswith("kernels/") and Path(file).name in ("kernel.py", "triton.py"):
        return
    module = tree(file)
    for statement in module.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for line, name in imports(ast.Module([statement], [])):
                assert name.partition(".")[0] not in OPTIONAL, f"{file}:{line} needs {name}, which may be absent"


@pytest.mark.parametrize("file", PRODUCT)
def test_the_environment_is_read_in_one_file(file):
    if file == "specforge/runtime/env.py":
        return
    for found in ast.walk(tree(file)):
        name = found.attr if isinstance(found, ast.Attribute) else found.id if isinstance(found, ast.Name) else ""
        assert name not in ("environ", "getenv"), f"{file}:{found.lineno} reads the environment"


def test_what_is_imported_is_a_declared_dependency():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [row for name in ("gpu", "gguf", "serve", "bench") for row in project["optional-dependencies"][name]]
    core, optional = (
        {re.match(r"[\w-]+", row)[0].lower().replace("-", "_") for row in rows}
        for rows in (project["dependencies"], extras)
    )
    imported = {name.partition(".")[0] for file in PRODUCT for _, name in imports(tree(file))} - STANDARD - set(OURS)
    assert imported <= core | optional
    assert imported & optional <= OPTIONAL | SERVE_THIRD


def test_the_one_file_reads_it():
    assert "os.environ" in (REPOSITORY / "specforge/runtime/env.py").read_text()


@pytest.mark.parametrize("file", files("specforge", "kernels", "recipes", "tests"))
def test_a_file_is_short_and_has_a_name_that_says_something(file):
    assert (REPOSITORY / file).read_bytes().count(b"\n") <= MOST_LINES
    assert Path(file).stem not in FORBIDDEN_NAMES
    assert not FORBIDDEN_NAMES & set(Path(file).parent.parts)


@pytest.mark.parametrize(
    "file", [f for f in PRODUCT if (REPOSITORY / f).stat().st_size and not f.startswith("recipes/")]
)
def test_a_file_begins_with_what_comes_in_and_what_goes_out(file):
    doc = ast.get_docstring(tree(file)) or ""
    if file == "specforge/__init__.py":
        return
    assert doc.startswith("In: "), file
    assert "Out: " in doc, file


@pytest.mark.parametrize("file", PRODUCT)
def test_a_function_takes_at_most_six_parameters(file):
    for found in ast.walk(tree(file)):
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and found.name not in FREE_NAMES:
            if any("jit" in ast.dump(d) for d in found.decorator_list):
                continue
            args = [*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs]
            count = len(args) - bool(args and args[0].arg in ("self", "cls"))
            assert count <= MOST_PARAMETERS, f"{file}:{found.lineno} {found.name} takes {count}"


@pytest.mark.parametrize("file", PRODUCT)
def test_nothing_is_left_unfinished(file):
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert not [word for word in words if word in text]


def test_the_table_in_the_docs_names_every_layer():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [known.path for known in LAYERS if f"`{known.path.removesuffix('.py')}" not in page]


@pytest.mark.parametrize(
    "module", ["specforge", "specforge.dsl", "specforge.plan", "specforge.cli", "specforge.compiler"]
)
def test_importing_it_imports_no_torch(module):
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'rich')))"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=os.environ | {"PYTHONSAFEPATH": "1"}, check=False
    )
    assert made.returncode == 0


@pytest.mark.parametrize(
    "module",
    ["specforge.runtime.launch", "specforge.runtime.control.controller_process", "specforge.runtime.capture.worker"],
)
def test_what_only_controls_imports_no_torch(module):
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_a_run_in_one_process_needs_none_of_the_extra_serve():
    code = "import sys, specforge.runtime.run; sys.exit(any(m in sys.modules for m in ('starlette', 'uvicorn')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
