"""Version of a stage's code: a hash over everything of ours that the stage module imports.

The imports are read from the source without running it, including those inside functions. A file counts by its
syntax tree without docstrings, so comments and layout do not change a version and statements do. A module name that
is put together at run time counts as every module below the package it starts with. Files beside the code of a
package, such as templates, count by their bytes.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specflow.workflow.syntax_cache import Entry, SyntaxCache

OUR_PACKAGES = ("specflow", "specflow_kernels")
NEVER_COUNTED = ("specflow.workflow", "specflow.cli")
"""They run stages; a stage never imports them, and its result does not depend on them."""


@dataclass(frozen=True, slots=True)
class _Source:
    digest: str
    imports: frozenset[str]
    """Absolute dotted names that the file may import; not all of them are modules. ``package.*``: all below it."""


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Any bare string statement: the first is the docstring, later ones document attributes.
            node.body = [s for s in node.body if not _is_bare_string(s)] or [ast.Pass()]
    return tree


def _is_bare_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and _names_our_module(node.value):
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield from _all_below(node)


def _names_our_module(value: object) -> bool:
    """Whether a constant could be a module of ours that importlib is asked for."""
    return (
        isinstance(value, str)
        and value.startswith(tuple(f"{package}." for package in OUR_PACKAGES))
        and all(part.isidentifier() for part in value.split("."))
    )


def _all_below(node: ast.JoinedStr) -> Iterator[str]:
    """``specflow.drafters.*`` for ``f"specflow.drafters.{name}.method"``."""
    texts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
    if not texts or not isinstance(node.values[0], ast.Constant):
        return
    package = texts[0].rpartition(".")[0]
    dotted = all(character.isalnum() or character in "._" for character in "".join(texts))
    if dotted and package.partition(".")[0] in OUR_PACKAGES:
        yield f"{package}.*"


class CodeVersions:
    """Versions of stage modules; each file is read once per instance."""

    def __init__(self, roots: dict[str, Path] | None = None, *, cache: SyntaxCache | None = None) -> None:
        self._cache = cache
        self._roots = dict(roots) if roots is not None else {}
        self._given = roots is not None
        self._sources: dict[str, _Source | None] = {}
        self._versions: dict[str, str] = {}

    def version(self, module: str) -> str:
        """Hex SHA-256; ``ModuleNotFoundError`` if the stage module has no source file."""
        if module not in self._versions:
            digest = hashlib.sha256()
            for name in sorted(self.closure(module)):
                source = self._source(name)
                assert source is not None
                digest.update(f"{name}\0{source.digest}\0".encode())
            self._versions[module] = digest.hexdigest()
            if self._cache:
                self._cache.keep()
        return self._versions[module]

    def closure(self, module: str) -> set[str]:
        """All modules of ours that ``module`` may import, itself included, with their parent packages."""
        found: set[str] = set()
        waiting = [module]
        if self._source(module) is None:
            raise ModuleNotFoundError(f"no source file for stage module {module!r}", name=module)
        while waiting:
            name = waiting.pop()
            if name in found or name.startswith(NEVER_COUNTED):
                continue
            source = self._source(name)
            if name.endswith(".*"):
                waiting += self._modules_below(name.removesuffix(".*"))
            if source is None:
                continue
            found.add(name)
            if "." in name:
                waiting.append(name.rpartition(".")[0])
            waiting.extend(source.imports)
        return found

    def _source(self, module: str) -> _Source | None:
        if module not in self._sources:
            self._sources[module] = self._read(module)
        return self._sources[module]

    def _read(self, module: str) -> _Source | None:
        path = self._find(module)
        if path is None:
            return None
        content = path.read_bytes()
        package = module.rpartition(".")[0]
        data = b""
        if path.name == "__init__.py":
            package = module
            for name, file in _data_files(path.parent):
                data += f"\0{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}".encode()

        def parse() -> Entry:
            tree = _without_docstrings(ast.parse(content, filename=str(path)))
            return hashlib.sha256(ast.dump(tree).encode() + data).hexdigest(), sorted(_imported_names(tree, package))

        # Relative imports depend on the package, data files on nothing in the source.
        digest, imports = self._cache.entry(package, content + data, parse) if self._cache else parse()
        return _Source(digest, frozenset(imports))

    def _modules_below(self, package: str) -> list[str]:
        found = self._find(package)
        if found is None or found.name != "__init__.py":
            return []
        names = (path.relative_to(found.parent).with_suffix("").parts for path in found.parent.rglob("*.py"))
        return [".".join([package, *parts]).removesuffix(".__init__") for parts in names]

    def _find(self, module: str) -> Path | None:
        top, _, rest = module.partition(".")
        root = self._root(top)
        if root is None:
            return None
        base = root.joinpath(*rest.split(".")) if rest else root
        candidates = (base / "__init__.py", base.with_suffix(".py"))
        return next((path for path in candidates if path.is_file()), None)

    def _root(self, package: str) -> Path | None:
        if package not in self._roots and not self._given and package in OUR_PACKAGES:
            spec = importlib.util.find_spec(package)
            places = list(spec.submodule_search_locations or ()) if spec else []
            if places:
                self._roots[package] = Path(places[0])
        return self._roots.get(package)


def _data_files(package: Path) -> Iterator[tuple[str, Path]]:
    """Files of a package directory that are no code, with their names; those of its subpackages are their own."""
    for path in sorted(package.iterdir()):
        if path.name.startswith((".", "__pycache__")) or path.suffix in (".py", ".pyc") or path.name == "py.typed":
            continue
        if path.is_dir() and not (path / "__init__.py").exists():
            yield from ((f"{path.name}/{name}", file) for name, file in _data_files(path))
        elif path.is_file():
            yield path.name, path


@functools.cache
def code_versions() -> CodeVersions:
    """The versions of the installed packages, shared within this process."""
    return CodeVersions(cache=SyntaxCache(Path(__file__)))
