"""`sapo swarm find`: the open swarms that are alive, what each asks, and the line that joins it."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from sapo_edge.care.signals import until_signal
from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import print_json
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import counted, line, narrate, printable
from sapo_edge.swarm.status import TROUBLES
from sapo_edge.transport import SwarmError

if TYPE_CHECKING:
    from sapo_edge.swarm.visits.find import FoundSwarm, SwarmFinder
    from sapo_edge.tasks.manifest import Manifest

ADDRESSES = 3
"""Most members that the line names."""
QUESTIONS, CHARACTERS = 3, 200
"""Most of a manifest's own questions that are shown, and characters of each."""
PUBLIC = (
    "in an open swarm anybody can read the questions, your model's answers as text, your node's public key and your "
    "IP address (docs/privacy.md)"
)


def find(home: Home = None, json: Json = False) -> None:
    """Find the open swarms that are alive, and the lines that join them."""
    import trio

    from sapo_edge.swarm.host.logs import preserve_logging

    with preserve_logging():
        from sapo_edge.swarm.rendezvous.lookup import Entry
        from sapo_edge.swarm.visits.find import SECONDS, SwarmFinder
    from sapo_edge.tasks.about import SKILL_WORDS
    from sapo_edge.tasks.manifest import load_manifest

    workspace = open_workspace(home)
    if not workspace.contacts:
        name, value = ("rendezvous", "on") if workspace.settings.listen == "all" else ("listen", "all")
        source = workspace.resolved.sources[name]
        remedy = f"set {name} = {value}, then find again"
        raise ConfigError(f"nothing is looked up, by the setting {name} ({source})", remedy)
    known = [load_manifest(name) for name in SKILL_WORDS]
    entry = Entry(workspace.contacts, workspace.dht_nodes)
    told: set[str] = set()

    def changed() -> None:
        if json:
            print_json(_record(workspace, finder))
            return
        for found in finder.swarms.values():
            if found.manifest.digest not in told:
                told.add(found.manifest.digest)
                narrate(f"found {found.manifest.name}")

    async def look() -> None:
        with trio.move_on_after(SECONDS):
            await finder.run()

    finder = SwarmFinder(entry, known, _own_id(workspace), changed)
    narrate(f"asking BitTorrent's public table, and who is there, for {SECONDS:.0f} s; Ctrl-C shows what was found.")
    narrate("They see this machine's IP address.")
    with suppress(KeyboardInterrupt):
        trio.run(until_signal, look)
        if not finder.rendezvous.is_heard:
            what, remedy = TROUBLES[finder.rendezvous.trouble or "udp"]
            raise SwarmError(f"strangers' swarms can't be found from here: {what}", remedy)
    if json:
        print_json(_record(workspace, finder))
    else:
        _print(workspace, finder, known)


def _own_id(workspace: Workspace) -> str:
    """The peer id of this machine's node; "" if it has none yet."""
    from sapo_edge.state.secret import read_secret
    from sapo_edge.swarm.joining.identity import Identity

    try:
        return Identity(read_secret(workspace.paths.identity)).peer_id
    except SapoError:
        return ""


def _ordered(finder: SwarmFinder) -> list[FoundSwarm]:
    """Those with most members first."""
    return sorted(finder.swarms.values(), key=lambda found: (-len(found.members), found.manifest.name))


def _record(workspace: Workspace, finder: SwarmFinder) -> dict[str, Any]:
    swarms = [_describe(workspace, found) for found in _ordered(finder)]
    return {"swarms": swarms, "shared": PUBLIC, "asked": finder.asked}


def _describe(workspace: Workspace, found: FoundSwarm) -> dict[str, Any]:
    from sapo_edge.swarm.joining.invite import Swarm
    from sapo_edge.tasks.about import describe_demands, describe_kinds
    from sapo_edge.tasks.manifest import shipped_name

    manifest, swarm = found.manifest, workspace.swarm
    is_shipped = shipped_name(manifest.digest) is not None
    # Who has the manifest needs nobody's address: the swarm's key leads to its members.
    addresses = () if is_shipped else tuple(map(str, list(found.members.values())[:ADDRESSES]))
    return {
        "name": manifest.name, "swarm": manifest.digest, "shipped": is_shipped, "members": len(found.members),
        "joined": swarm is not None and not workspace.is_alone and swarm.id.hex() == manifest.digest,
        "tasks": describe_kinds(manifest), "asks": describe_demands(manifest), "questions": _questions(manifest),
        "invite": Swarm.of(manifest, addresses).to_line(),
    }  # fmt: skip


def _questions(manifest: Manifest) -> list[str]:
    own = (
        question.question for entry in manifest.tasks if isinstance(entry.questions, tuple)
        for question in entry.questions
    )  # fmt: skip
    return [text[:CHARACTERS] for text in islice(own, QUESTIONS)]


def _print(workspace: Workspace, finder: SwarmFinder, known: list[Manifest]) -> None:
    for found in _ordered(finder):
        swarm = _describe(workspace, found)
        kind = "comes with sapo" if swarm["shipped"] else "named by strangers"
        here = ", yours" if swarm["joined"] else ""
        print(line("swarm", f"{swarm['name']} ({kind}{here}), {counted(swarm['members'], 'member')} seen"))
        print(line("tasks", swarm["tasks"]))
        for question in swarm["questions"]:
            print(line("question", question))
        print(line("asks", swarm["asks"]))
        # On one line, to be copied.
        print(f"sapo swarm join {printable(swarm['invite'])}\n")
    missing = [manifest.name for manifest in known if manifest.digest not in finder.swarms]
    if missing:
        narrate(f"nobody was seen of: {', '.join(missing)}")
    narrate(f"{counted(finder.asked, 'address', 'addresses')} asked; who can't be reached from outside is not counted")
    if finder.swarms:
        narrate(PUBLIC)
