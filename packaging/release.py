#!/usr/bin/env python3
"""Makes a release: version, CHANGELOG, commit, tag, wheels, sdist, release notes, SBOM. Pushes and uploads nothing.

    python packaging/release.py 0.2.0 [--to dist]

Refuses a version that is not above the last one, an empty `Unreleased` section, and a tree with changes. Afterwards,
`git push --follow-tags` and the upload of the directory are yours; `git reset --hard HEAD~1 && git tag -d v0.2.0` takes
it back before that. The SBOM (CycloneDX, JSON) describes the environment that runs this, by `cyclonedx-py`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION = ROOT / "sapo_edge/__init__.py"


def main() -> None:
    """Make the release of the version that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    if git("status", "--porcelain"):
        sys.exit("the tree has changes: commit them first")
    version, to = arguments.version, arguments.to / arguments.version
    # Both would fail after the commit.
    if to.exists() or git("tag", "--list", f"v{version}"):
        sys.exit(f"there is a tag v{version}, or {to}: remove what is left of an earlier attempt")
    code, notes, changes = prepared(version, VERSION.read_text("utf-8"), CHANGELOG.read_text("utf-8"))
    VERSION.write_text(code, "utf-8")
    CHANGELOG.write_text(changes, "utf-8")
    git("commit", "--quiet", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--message", notes)
    to.mkdir(parents=True)
    (to / "NOTES.md").write_text(notes, "utf-8")
    make = [sys.executable, "packaging/wheels.py", "--to", str(to), "app", "core", "slim", "sdist"]
    subprocess.run(make, cwd=ROOT, check=True)
    with (to / "sapo.1").open("wb") as page:
        subprocess.run([sys.executable, "packaging/manual.py"], cwd=ROOT, stdout=page, check=True)
    if shutil.which("cyclonedx-py"):
        sbom = ["cyclonedx-py", "environment", "--output-file", str(to / "sbom.cdx.json"), sys.executable]
        subprocess.run(sbom, check=True)
    else:
        print("no SBOM: install cyclonedx-bom, which brings cyclonedx-py")
    print(f"v{version} in {to}: push it with `git push --follow-tags`")


def prepared(version: str, code: str, changes: str) -> tuple[str, str, str]:
    """The files of a release.

    Args:
        code: of `sapo_edge/__init__.py`.
        changes: CHANGELOG.md.

    Returns:
        `code` with the version, the release notes, and `changes` with a heading for the version.

    Raises:
        SystemExit: if the version is not above the last one, or there are no notes.
    """
    found = re.search(r'^__version__ = "(.*)"$', code, re.MULTILINE)
    if found is None or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit("a version is three numbers, such as 0.2.0")
    released = f"\n## [{found[1]}]" in changes
    if parts(version) < parts(found[1]) or (released and version == found[1]):
        sys.exit(f"{version} is not above {found[1]}")
    head, heading, rest = changes.partition("\n## [Unreleased]\n")
    notes, next_heading, older = rest.partition("\n## [")
    if not heading or not notes.strip():
        sys.exit("CHANGELOG.md has nothing under Unreleased")
    day = datetime.now(UTC).date().isoformat()
    changes = f"{head}{heading}\n## [{version}] - {day}\n{notes}{next_heading}{older}"
    return code.replace(found[0], f'__version__ = "{version}"'), f"{notes.strip()}\n", changes


def parts(version: str) -> tuple[int, ...]:
    """A version's numbers."""
    return tuple(int(part) for part in version.split("."))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
