"""What is packaged: metadata, declared imports, text files that speak of the project alone, a light command line."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vmmref.conformance.payloads import expected_digest, nbytes
from vmmref_models.operations import Wrap
from vmmref_models.trace import from_json

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED = ("vmmref", "models")
FOLDERS = (*SHIPPED, "specs", "tests", "examples", ".ci", "ci")
TEXT = {".py", ".md", ".toml", ".txt", ".c", ".h", ".def", ".json", ".yml", ".sh", ""}
IMPORT_NAME = {
    "cuda-bindings": "cuda",
    "cuda-python": "cuda",
    "crosshair-tool": "crosshair",
    "hypothesis-crosshair": "hypothesis_crosshair",
    "pytest-timeout": "pytest_timeout",
    "z3-solver": "z3",
}
"""Where a distribution's import name is not its own name."""


def _requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0].lower()


def _declared(extras: bool) -> set[str]:
    """Names of the distributions that the project asks for, with or without its extras."""
    requirements: list[str] = list(PROJECT["project"]["dependencies"])
    if extras:
        for listed in PROJECT["project"]["optional-dependencies"].values():
            requirements += listed
    return {_requirement_name(requirement) for requirement in requirements} - {"vmmref"}


def _text_files() -> Iterator[Path]:
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and path.suffix in TEXT:
            yield path
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def _third_party(folder: str) -> dict[str, str]:
    """Imported name -> one file that imports it, without the standard library and our own packages."""
    own = {"vmmref", "vmmref_models"} | set(sys.stdlib_module_names)
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in _imported(path) - own:
            found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def test_metadata() -> None:
    project = PROJECT["project"]
    assert project["name"] == "vmmref"
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (ROOT / project["readme"]).is_file()


@pytest.mark.parametrize(
    "target",
    [*PROJECT["project"]["scripts"].values(), *PROJECT["project"]["entry-points"]["vmmref.subjects"].values()],
)
def test_entry_points_exist(target: str) -> None:
    module, _, name = target.partition(":")
    base = ROOT.joinpath(*module.split("."))
    source = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {
        item.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for item in node.targets
        if isinstance(item, ast.Name)
    }
    defined |= {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert name in defined, f"{target} names nothing in {source.relative_to(ROOT)}"


def test_constraints_are_exact_and_cover_what_is_needed() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned.values())
    needed = _declared(extras=False) | {
        _requirement_name(requirement)
        for extra in ("test", "dev")
        for requirement in PROJECT["project"]["optional-dependencies"][extra]
    }
    assert sorted(needed - {"vmmref"} - set(pinned)) == []


@pytest.mark.parametrize("folder", SHIPPED)
def test_third_party_imports_are_declared(folder: str) -> None:
    declared = {IMPORT_NAME.get(name, name) for name in _declared(extras=True)}
    undeclared = {name: path for name, path in _third_party(folder).items() if name not in declared}
    assert undeclared == {}


def test_the_model_needs_the_standard_library_only() -> None:
    """Its proofs alone need a solver, and nothing else of the model imports them."""
    proofs = ROOT / "models" / "vmmref_models" / "proofs"
    for path in (ROOT / "models").rglob("*.py"):
        allowed = {"z3"} if proofs in path.parents else set()
        assert _imported(path) - {"vmmref_models"} - set(sys.stdlib_module_names) <= allowed, path
        assert proofs in path.parents or "vmmref_models.proofs" not in path.read_text(encoding="utf-8"), path
        assert "vmmref" not in _imported(path), path


def test_dependencies_are_used() -> None:
    """Every dependency is imported, but numpy: torch warns at its own import where it is missing."""
    used = {name for folder in SHIPPED for name in _third_party(folder)}
    needed = {IMPORT_NAME.get(name, name) for name in _declared(extras=False)}
    assert sorted(needed - used) == ["numpy"]


def test_models_is_not_a_package() -> None:
    """`models/` is a folder on the path; `import models` would find a second copy of every class in it."""
    banned = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert "models" in banned
    assert not (ROOT / "models" / "__init__.py").exists()
    for folder in ("vmmref", "models", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "models" not in _imported(path), path


def test_text_speaks_of_the_project_alone() -> None:
    """No path of a machine, no host of a package index, nothing unfinished."""
    # Written in pieces, so that this file does not find itself.
    slash = "/"
    words = [slash + name + slash for name in ("work", "tmp", "root", "home")]
    words += ["pypi" + ".org", "files.python" + "hosted", "--index" + "-url", "TO" + "DO", "FIX" + "ME"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(word in line for word in words)
    ]
    assert found == []


def test_links_in_the_documents_lead_somewhere() -> None:
    broken = []
    for path in _text_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert broken == []


def test_the_trace_in_the_documents_is_one() -> None:
    text = (ROOT / "specs" / "conformance.md").read_text(encoding="utf-8")
    block = re.search(r"```json\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    wrap = from_json(block[1]).operations[0]
    assert isinstance(wrap, Wrap)
    assert (wrap.nbytes, wrap.digest) == (nbytes(wrap.payload), expected_digest(wrap.payload))


def test_readme_and_ci_agree_on_the_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- test command -->\n```sh\n(python3 .*)\n```\n<!-- end -->", readme)
    assert block is not None
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_help_starts_without_torch() -> None:
    """The command line answers at once: nothing that takes seconds to import, and no driver."""
    script = (
        "import sys\n"
        "from vmmref.cli import main\n"
        "sys.argv = ['vmmref', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "loaded = sorted({'torch', 'cuda', 'numpy', 'hypothesis'} & set(sys.modules))\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=_child_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "check" in done.stdout


def _child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'models'}"}
