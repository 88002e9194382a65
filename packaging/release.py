#!/usr/bin/env python3
"""Marks a release, or makes its files. Pushes and uploads nothing: packaging/RELEASING.md.

    python packaging/release.py 0.2.0               CHANGELOG, commit, tag
    python packaging/release.py --make [--to dist]  the files of the tag that is checked out
    python packaging/release.py 0.2.0 --dry-run     both, in a copy of the last commit; this tree stays as it is

Refuses a version that is not above the last one, an empty `Unreleased` section, and a tree with changes. The files:
wheels, sdist, Debian package, manual page, notes, an SBOM (CycloneDX, JSON) of an environment into which the wheels
were installed, sapo-edge.tar with which `sh sapo-edge/install.sh` installs, and SHA256SUMS.
`git reset --hard HEAD~1 && git tag -d v0.2.0` takes a mark back before it is pushed. The version is git's tag.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAG = r"v(\d+\.\d+\.\d+)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?")
    parser.add_argument("--make", action="store_true", help="the files of the tag that is checked out")
    parser.add_argument("--dry-run", action="store_true", help="mark and make in a copy")
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    if (arguments.version is None) != arguments.make:
        parser.error("name a version, or --make")
    if arguments.make:
        make(ROOT, arguments.to)
    elif not arguments.dry_run:
        mark(ROOT, arguments.version)
        print(f"v{arguments.version}: push it with `git push --follow-tags`")
    else:
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / "copy"
            git(ROOT, "clone", "--quiet", str(ROOT), str(copy))
            mark(copy, arguments.version)
            make(copy, arguments.to)


def mark(tree: Path, version: str) -> None:
    """Head the CHANGELOG's newest section with a version, commit, and tag the commit with the notes."""
    if git(tree, "status", "--porcelain"):
        sys.exit("the tree has changes: commit them first")
    changelog = tree / "CHANGELOG.md"
    notes, changes = prepared(version, git(tree, "tag").split(), changelog.read_text("utf-8"))
    changelog.write_text(changes, "utf-8")
    git(tree, "commit", "--quiet", "--all", "--message", f"Release {version}")
    # A line that begins with # is a heading here.
    git(tree, "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", notes)


def prepared(version: str, tags: list[str], changes: str) -> tuple[str, str]:
    """The release notes, and CHANGELOG.md with a heading for the version, which has to be above those of the tags."""
    if not re.fullmatch(TAG, f"v{version}"):
        sys.exit("a version is three numbers, such as 0.2.0")
    last = max((parts(found[1]) for tag in tags if (found := re.fullmatch(TAG, tag))), default=(0, 0, 0))
    if parts(version) <= last:
        sys.exit(f"{version} is not above {'.'.join(map(str, last))}")
    head, heading, rest = changes.partition("\n## [Unreleased]\n")
    notes, next_heading, older = rest.partition("\n## [")
    if not heading or not notes.strip():
        sys.exit("CHANGELOG.md has nothing under Unreleased")
    day = datetime.now(UTC).date().isoformat()
    return f"{notes.strip()}\n", f"{head}{heading}\n## [{version}] - {day}\n{notes}{next_heading}{older}"


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def make(tree: Path, to: Path) -> None:
    """Write all files of the release whose tag a tree has checked out into a new or empty directory."""
    tag = next((tag for tag in git(tree, "tag", "--points-at", "HEAD").split() if re.fullmatch(TAG, tag)), None)
    if tag is None:
        sys.exit("no release is checked out: mark one, or `git checkout` its tag")
    if to.exists() and any(to.iterdir()):
        sys.exit(f"{to} is not empty: name another directory, or remove what an earlier attempt left")
    to = to.resolve()
    to.mkdir(parents=True, exist_ok=True)
    (to / "NOTES.md").write_text(git(tree, "tag", "--list", "--format=%(contents)", tag) + "\n", "utf-8")
    run(sys.executable, tree / "packaging/wheels.py", "--to", to, "app", "core", "slim", "sdist")
    run(sys.executable, tree / "packaging/deb.py", "--wheels", to, "--to", to)
    with tempfile.TemporaryDirectory() as directory:
        described(tree, to, Path(directory))
    with tarfile.open(to / "sapo-edge.tar", "w") as archive:
        for file in (tree / "install.sh", tree / "constraints.txt", *sorted(to.glob("*.whl"))):
            archive.add(file, f"sapo-edge/{file.name}")
    digests = [f"{digest(file)}  {file.name}\n" for file in sorted(to.iterdir())]
    (to / "SHA256SUMS").write_text("".join(digests), "utf-8")
    print(f"{tag} in {to}: {len(digests) + 1} files")


def described(tree: Path, to: Path, directory: Path) -> None:
    """Install the wheels into an environment of their own, and write what only that knows: SBOM and manual page."""
    (wheel,) = (file for file in to.glob("sapo_edge-*.whl") if "+" not in file.name)
    for name in ("program", "tools"):
        venv.create(directory / name, with_pip=True)
    program, tools = directory / "program/bin/python", directory / "tools/bin/python"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("--find-links", to, "--constraint", tree / "constraints.txt")
    run(program, *pip, *constraints, f"{wheel}[starter,llama,web]")
    run(tools, *pip, "cyclonedx-bom>=7")
    run(tools, "-m", "cyclonedx_py", "environment", "--output-file", to / "sbom.cdx.json", program)
    with (to / "sapo.1").open("wb") as page:
        subprocess.run([program, tree / "packaging/manual.py"], cwd=directory, stdout=page, check=True)


def digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
