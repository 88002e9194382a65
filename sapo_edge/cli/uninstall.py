"""`sapo uninstall`: everything that the program left on this machine, listed first; the identity stays unless asked."""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import ask_yes, print_json
from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import narrate, size
from sapo_edge.service.plan import DEFAULT_NAME
from sapo_edge.state.durable import bytes_in, replace_file, reported
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import IDENTITIES, Paths


@dataclass(frozen=True, slots=True)
class Item:
    """Something on this machine that is the program's: bytes on the disk, 0 for a part of somebody's file."""

    kind: str
    path: Path
    bytes: int
    remove: Callable[[], object]


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List everything and remove nothing.")] = False,
    identity: Annotated[bool, typer.Option("--identity", help="Remove the node's secret key, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a question.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Remove service, completion, settings, adapters, history and caches; without --identity the node's key stays."""
    paths = Paths.default(home)
    # Another home is one of several nodes: the completion serves the others, too.
    completion = _completion(Path.home()) if paths.home is None else ()
    items = [*_services(paths), *completion, *_directories(paths, with_identity=identity)]
    kept = [path for name in IDENTITIES if not identity and (path := paths.state / name).exists()]
    listed = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in items]
    lines = [f"{item.kind:12} {size(item.bytes) if item.bytes else '':>9}  {item.path}" for item in items]
    lines += [f"{'kept':12} {'':>9}  {path}" for path in kept]
    for text in () if json else lines:
        print(text)
    removed = False
    try:
        removed = not dry_run and _remove(paths, items, yes=yes, asks=not json)
    finally:
        # Only now is it known, also of a removal that was refused.
        if json:
            print_json({"items": listed, "kept": [str(path) for path in kept], "removed": removed})
    for text in _advice():
        narrate(text)


def _remove(paths: Paths, items: list[Item], *, yes: bool, asks: bool) -> bool:
    """Remove all of it, unless the answer is no; returns whether it is gone."""
    runs_as_service = any(item.kind == "service" for item in items)
    if (holder := lock_holder(paths.lock)) is not None and not runs_as_service:
        raise StateError(f"a node runs here (process {holder})", "stop it first, with `sapo stop --wait`")
    if (holder := lock_holder(paths.relay_lock)) is not None:
        remedy = "stop it first, with Ctrl-C in its terminal or with `kill`"
        raise StateError(f"a relay runs here (process {holder})", remedy)
    if not yes:
        if not (asks and sys.stdin is not None and sys.stdin.isatty()):
            raise ConfigError("nobody can be asked here", "give --yes to remove all of it")
        if not ask_yes("Remove all of it? Adapters and history can't be made again."):
            narrate("nothing was removed")
            return False
    for item in items:
        item.remove()
        if item.kind == "service" and (holder := lock_holder(paths.lock)) is not None:
            remedy = "stop it, with `sapo stop --wait`; then again"
            raise StateError(f"a node still runs here (process {holder})", remedy)
    narrate("removed")
    return True


def _services(paths: Paths) -> Iterator[Item]:
    """Services of this state directory, whatever their names: of this user and, for root, of the system."""
    from sapo_edge.cli.service import manager_of

    for system in (False, True) if os.geteuid() == 0 else (False,):
        manager = manager_of(DEFAULT_NAME, system=system)
        unit = manager.unit(DEFAULT_NAME)
        for file in sorted(unit.parent.glob(f"*{unit.suffix}")) if unit.parent.is_dir() else ():
            if file.is_symlink() or not file.is_file():
                continue
            with reported("read", file, "change its permissions"):
                text = file.read_text("utf-8", "replace")
            if manager.mark in text and _names(text, paths.state):
                yield Item("service", file, file.stat().st_size, partial(manager.remove, file.stem))


def _names(text: str, state: Path) -> bool:
    """Whether the text of a unit or a property list names this directory, and not one whose name begins like it."""
    plain = html.unescape(text).replace("%%", "%")
    return re.search(rf"(?<![\w./-]){re.escape(str(state))}(?![\w.-])", plain) is not None


def _completion(home: Path) -> Iterator[Item]:
    """What `sapo --install-completion` wrote. A line of .zshrc serves other programs, too, and stays."""
    script = home / ".bash_completions" / "sapo.sh"
    for file in (script, home / ".zfunc" / "_sapo", home / ".config" / "fish" / "completions" / "sapo.fish"):
        if file.is_file():
            yield Item("completion", file, file.stat().st_size, file.unlink)
    line, start = f"source '{script}'", home / ".bashrc"
    if start.is_file() and line in start.read_text("utf-8", "surrogateescape").splitlines():
        yield Item("completion", start, 0, partial(_drop_line, start, line))


def _drop_line(file: Path, line: str) -> None:
    lines = file.read_text("utf-8", "surrogateescape").splitlines(keepends=True)
    kept = "".join(text for text in lines if text.rstrip("\r\n") != line)
    replace_file(file, kept.encode("utf-8", "surrogateescape"), "remove the line by hand")


def _directories(paths: Paths, *, with_identity: bool) -> Iterator[Item]:
    """The program's directories; of the state everything but the identity, unless that is to go, too."""
    places = [("settings", paths.config), ("cache", paths.cache), ("socket", paths.runtime)]
    # On macOS the settings are in the directory of the state, as the key is.
    places = [(kind, place) for kind, place in places if not place.is_relative_to(paths.state)]
    if with_identity or not any((paths.state / name).exists() for name in IDENTITIES):
        places.append(("state", paths.state))
    elif paths.state.is_dir():
        places += [("state", path) for path in sorted(paths.state.iterdir()) if path.name not in IDENTITIES]
    for kind, place in places:
        if place.exists():
            yield Item(kind, place, bytes_in(place), partial(_remove_tree, place))


def _remove_tree(place: Path) -> None:
    # A link to a directory elsewhere goes; what it leads to stays.
    with reported("remove", place, "remove it by hand"):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _advice() -> Iterator[str]:
    from sapo_edge.installing import how_to_remove

    yield "models of the hub are shared with other programs: `sapo models list`, then `sapo models remove`"
    if os.geteuid() != 0:
        yield "a service of the system: `sudo sapo service remove --system`"
    yield f"the program itself: {how_to_remove()}"
