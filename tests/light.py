"""Tests on a Python without the libraries that are large or need a compiler; `.ci/light` runs them.

`python -m tests.light` imports every module that needs none of them. With `pytest -p tests.light`, a file or a test
that stops at the import of one of them is skipped; all others have to pass.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from pkgutil import walk_packages

import pytest
from hypothesis import settings

import sapo_edge

# `google` is protobuf, which comes with libp2p.
HEAVY = {
    "accelerate", "google", "huggingface_hub", "libp2p", "llama_cpp", "matplotlib", "mlx", "mlx_lm", "multiaddr",
    "nbclient", "nbformat", "peft", "pyarrow", "reasoning_gym", "scipy", "sympy", "tensorboardX", "tokenizers", "torch",
    "transformers", "verifiers",
}  # fmt: skip
NEED_THEM = (
    "tests/unit/backends/choose/test_detect.py", "tests/unit/backends/llama/", "tests/unit/backends/model/test_find.py",
    "tests/unit/backends/model/test_ggml.py", "tests/unit/backends/model/test_hf_directory.py",
    "tests/unit/backends/model/test_llama_library.py", "tests/unit/doctor/test_backends.py",
    "tests/unit/experiment/test_report.py",
)  # fmt: skip
"""Files whose tests fail in other ways than by an import: the program catches the error and reports it."""
FEWEST = 600
"""Tests that have to pass: fewer means that too much is skipped."""
FEWEST_MODULES = 150
"""The same for modules that can be imported."""

passed = 0


def missing(error: BaseException | None) -> str | None:
    """The name of the heavy library behind an error, if one is."""
    while error is not None:
        name = error.name if isinstance(error, (ImportError, PackageNotFoundError)) else None
        library = str(name or "").replace("-", "_").split(".")[0]
        if library in HEAVY:
            return library
        error = error.__cause__ or error.__context__
    return None


def pytest_sessionstart() -> None:
    # Where a version of Python differs, it does so at the first examples.
    settings.register_profile("few", max_examples=10, deadline=None)
    settings.load_profile("few")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if any(part in f"{collection_path}/" for part in NEED_THEM) else None


class Module(pytest.Module):
    """A file whose import may fail for want of a library."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        try:
            yield from super().collect()
        except self.CollectError as error:
            if library := missing(error):
                pytest.skip(f"needs {library}")
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = Module.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    library = missing(call.excinfo.value) if call.excinfo is not None else None
    if library and report.failed:
        report.outcome, report.longrepr = "skipped", (str(report.fspath), 0, f"needs {library}")
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global passed
    passed += report.when == "call" and report.passed


def pytest_sessionfinish(session: pytest.Session) -> None:
    if passed < FEWEST:
        print(f"\nonly {passed} tests passed, which is less than {FEWEST}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def main() -> None:
    """Import every module; those that need a heavy library may fail."""
    imported, needed = 0, set[str]()
    for module in walk_packages(sapo_edge.__path__, "sapo_edge."):
        if module.name.endswith("__main__"):
            continue
        try:
            import_module(module.name)
        except ImportError as error:
            library = missing(error)
            if library is None:
                raise
            needed.add(library)
        else:
            imported += 1
    print(f"{imported} modules imported; the others need {', '.join(sorted(needed))}")
    assert imported >= FEWEST_MODULES


if __name__ == "__main__":
    main()
