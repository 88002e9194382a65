"""`sapo swarm invite --code` and `sapo swarm join CODE`: an invite for a short code that somebody says aloud."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sapo_edge.care.signals import until_signal
from sapo_edge.cli.output import print_json
from sapo_edge.plain import narrate, table

if TYPE_CHECKING:
    from sapo_edge.library.workspace import Workspace
    from sapo_edge.swarm.addresses import Address
    from sapo_edge.swarm.codes.code import Code
    from sapo_edge.swarm.codes.reaching import Ways


def offer(line: str, addresses: Sequence[str], at: Sequence[str], workspace: Workspace, *, as_json: bool) -> None:
    """Offer an invite under a code, and wait until the other side has it.

    The user named the meeting places `at`; `addresses` are multiaddresses of members and relays that may be some, too.
    """
    import trio

    from sapo_edge.swarm.host.logs import preserve_logging

    with preserve_logging():
        from sapo_edge.swarm.codes.offering import offer_invite
        from sapo_edge.swarm.codes.reaching import group_places, parse_place
    places = [[parse_place(text)] for text in at] + group_places(addresses)
    ways = _ways(workspace)

    def ready(code: Code, own: Sequence[Address], others: Sequence[Address], is_announced: bool) -> None:
        alone = _where_alone(ways.mdns, ways.entry is not None, is_announced)
        _print_offer(code, own, others, alone, is_announced=is_announced, as_json=as_json)

    trio.run(until_signal, partial(offer_invite, line, places, ready, ways), "the code has ended")
    if as_json:
        print_json({"given": True})
    narrate("the other side has the invite; the code has ended")


def accept(text: str, addresses: Sequence[str], at: Sequence[str], workspace: Workspace) -> str:
    """The invite that somebody offers under a code, whose `text` is as the user typed it.

    If the user named meeting places (`at`), nobody else is asked: no members and relays at known multiaddresses.
    """
    import trio

    from sapo_edge.swarm.codes.code import parse_code
    from sapo_edge.swarm.host.logs import preserve_logging

    code = parse_code(text)
    with preserve_logging():
        from sapo_edge.swarm.codes.accepting import LOOK_SECONDS, accept_invite
        from sapo_edge.swarm.codes.reaching import group_places, parse_place
    named = [parse_place(one) for one in at]
    known = [address for group in group_places(addresses) for address in group]
    ways = _ways(workspace)
    narrate(f"looking for the other side (at most {LOOK_SECONDS:.0f} s)")
    look = partial(accept_invite, code, named, known, ways)
    line: str = trio.run(until_signal, look, "stopped; nothing was joined")
    return line


def _ways(workspace: Workspace) -> Ways:
    """How a side of a code looks for the other one, as the settings say."""
    from sapo_edge.swarm.addresses import listen_of
    from sapo_edge.swarm.codes.reaching import Ways

    settings = workspace.settings
    return Ways(listen_of(settings.listen), settings.mdns == "on", workspace.entry(), workspace.maps_port)


def _where_alone(nearby: bool, elsewhere: bool, is_announced: bool) -> str:
    """Where the code alone is enough; empty if nowhere."""
    near = ["on the same local network"] if nearby else []
    far = ["from anywhere if their router forwards a port or a volunteer is found"] if elsewhere else []
    return "from anywhere" if is_announced else "; ".join(near + far)


def _print_offer(
    code: Code, own: Sequence[Address], others: Sequence[Address], alone: str, *, is_announced: bool, as_json: bool
) -> None:
    from sapo_edge.swarm.codes.offering import OFFER_SECONDS
    from sapo_edge.swarm.codes.reaching import is_public, name_of

    command = f"sapo swarm join {code}"
    far = [place for place in others if is_public(place)]
    near = [place for place in others if place not in far]
    commands = [(command, alone)] if alone else []
    ways = [
        *((place, "on the same local network, without multicast") for place in own[:1]),
        *((place, "from anywhere") for place in far),
        *((place, "where this address can be reached") for place in near),
    ]
    commands += [(f"{command} --at {name_of(place)}", where) for place, where in ways]
    if as_json:
        print_json({
            "code": str(code), "seconds": OFFER_SECONDS,
            "commands": [{"command": text, "where": where} for text, where in commands],
        })  # fmt: skip
        return
    print(code, flush=True)
    narrate("the other side runs one of:")
    for text in table(commands):
        narrate(f"  {text}")
    if not far and not is_announced:
        narrate("no relay or member is known that can be reached from anywhere: name one with --at, or send the invite")
    narrate(f"waiting at most {OFFER_SECONDS / 60:.0f} minutes; the code works once. Ctrl-C ends it")
