"""What users install: metadata, files in the wheel, declared dependencies, and the commands the README opens with."""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tc.version import __version__

ROOT = Path(__file__).parent.parent
# Where the import differs from the distribution's name.
DISTRIBUTIONS = {"cuda": "cuda-bindings", "xgboost": "xgboost-cpu", "sklearn": "scikit-learn", "google": "protobuf"}


def setup_arguments() -> dict[str, ast.expr]:
    tree = ast.parse((ROOT / "setup.py").read_text())
    call = next(node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def declared_names(expression: ast.expr) -> set[str]:
    texts = [node.value for node in ast.walk(expression) if isinstance(node, ast.Constant)]
    return {re.split(r"[^\w.-]", text)[0].lower() for text in texts if re.search("[<>=]", text)}


def third_party_imports() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"tc"}


def test_every_import_is_a_declared_dependency() -> None:
    arguments = setup_arguments()
    declared = declared_names(arguments["install_requires"]) | declared_names(arguments["extras_require"])
    declared |= {"xgboost-cpu", "protobuf"}  # XGBOOST in setup.py; protobuf comes with onnx

    undeclared = {name for name in third_party_imports() if DISTRIBUTIONS.get(name, name) not in declared}

    assert not undeclared


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tc").rglob("*.py")}

    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_readme_opens_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.search(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    assert commands is not None
    install, test = commands[1].splitlines()
    assert install.endswith("tc demo")
    assert "[test]" in install + test and "pytest" in test
    assert text.index("```sh") < 100


def test_the_license_is_apache_2_word_for_word() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_in_the_documents_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))

    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_map_of_the_code_has_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "tc").glob("*/__init__.py")} - {"demo"}

    assert sorted(name for name in packages if f"`tc/{name}/`" not in text) == []


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_ci_script_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_the_demo_files(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="69")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tc", source / "tc", ignore=shutil.ignore_patterns("__pycache__"))

    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)],
        check=True,
        capture_output=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        metadata = archive.read(f"tc-{__version__}.dist-info/METADATA").decode()
        entry_points = archive.read(f"tc-{__version__}.dist-info/entry_points.txt").decode()
    shipped = [path for path in (ROOT / "tc").rglob("*") if path.suffix in (".py", ".json", ".onnx", ".npz", ".typed")]
    assert {str(path.relative_to(ROOT)) for path in shipped} <= held
    assert f"Version: {__version__}" in metadata and "Apache-2.0" in metadata
    assert [name for name in held if name.endswith("LICENSE")]
    assert "tc = tc.__main__:main" in entry_points


EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_the_python_examples_of_the_readme_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(EXAMPLES) == 2
    monkeypatch.chdir(tmp_path)

    exec(compile(EXAMPLES[number], "README.md", "exec"), {})
