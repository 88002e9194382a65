"""`sapo swarm invite --code` and `sapo swarm join CODE`: an invite for a short code that somebody says aloud."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.signals import until_signal
from sapo_edge.errors import SapoError
from sapo_edge.plain import table
from sapo_edge.transport import SwarmError

if TYPE_CHECKING:
    from sapo_edge.config.settings import Settings
    from sapo_edge.swarm.joining.code import Code
    from sapo_edge.swarm.visits.accepting import Failure
    from sapo_edge.swarm.visits.offering import Offered, Outcome

T = TypeVar("T")


def offer(line: str, addresses: Sequence[str], at: Sequence[str], settings: Settings, *, as_json: bool) -> None:
    """Offer an invite under a code, and wait until the other side has it.

    Args:
        addresses: multiaddresses of members and relays that may be meeting places.
        at: meeting places that the user named.

    Raises:
        SwarmError: if nobody got the invite.
    """
    from sapo_edge.swarm.host.logs import preserve_logging

    with preserve_logging():
        from sapo_edge.swarm.visits.offering import offer_invite
        from sapo_edge.swarm.visits.places import group_places, parse_place
    places = [[parse_place(text)] for text in at] + group_places(addresses)
    listen: Any = settings.listen
    mdns = settings.mdns == "on"

    def ready(offered: Offered) -> None:
        _print_offer(offered, nearby=mdns, as_json=as_json)

    outcome = _run(lambda: offer_invite(line, places, ready, listen=listen, mdns=mdns), "the code has ended")
    _report(outcome, as_json=as_json)


def accept(text: str, addresses: Sequence[str], at: Sequence[str], settings: Settings) -> str:
    """The invite that somebody offers under a code.

    Args:
        text: the code as the user typed it.
        addresses: multiaddresses of relays and members that this machine knows.
        at: meeting places that the user named; nobody else is asked then.

    Raises:
        SwarmError: if it brings no invite.
    """
    from sapo_edge.swarm.host.logs import preserve_logging
    from sapo_edge.swarm.joining.code import parse_code

    code = parse_code(text)
    with preserve_logging():
        from sapo_edge.swarm.visits.accepting import LOOK_SECONDS, accept_invite
        from sapo_edge.swarm.visits.places import group_places, parse_place
    named = [parse_place(one) for one in at]
    places = named or [address for group in group_places(addresses) for address in group]
    listen: Any = settings.listen
    mdns = settings.mdns == "on" and not named
    narrate(f"looking for the other side (at most {LOOK_SECONDS:.0f} s)")
    result = _run(lambda: accept_invite(code, places, listen=listen, mdns=mdns), "stopped; nothing was joined")
    if not isinstance(result, str):
        raise _failure(result, code, bool(named))
    return result


def _print_offer(offered: Offered, *, nearby: bool, as_json: bool) -> None:
    from sapo_edge.swarm.visits.offering import OFFER_SECONDS
    from sapo_edge.swarm.visits.places import is_public, name_of

    command = f"sapo swarm join {offered.code}"
    far = [place for place in offered.places if is_public(place)]
    near = [place for place in offered.places if place not in far]
    commands = [(command, "on the same local network")] if nearby else []
    ways = [
        *((place, "on the same local network, without multicast") for place in offered.own[:1]),
        *((place, "from anywhere") for place in far),
        *((place, "where this address can be reached") for place in near),
    ]
    commands += [(f"{command} --at {name_of(place)}", where) for place, where in ways]
    if as_json:
        print_json({
            "code": str(offered.code), "seconds": OFFER_SECONDS,
            "commands": [{"command": text, "where": where} for text, where in commands],
        })  # fmt: skip
        return
    print(offered.code, flush=True)
    narrate("the other side runs one of:")
    for text in table(commands):
        narrate(f"  {text}")
    if not far:
        narrate("no relay or member is known that can be reached from anywhere: name one with --at, or send the invite")
    narrate(f"waiting at most {OFFER_SECONDS / 60:.0f} minutes; the code works once. Ctrl-C ends it")


def _report(outcome: Outcome, *, as_json: bool) -> None:
    from sapo_edge.swarm.visits.offering import OFFER_SECONDS, Outcome

    again = "run the command again for a new one"
    if outcome is Outcome.WRONG:
        raise SwarmError("somebody gave a wrong code, so this one is used up", again)
    if outcome is Outcome.NOBODY:
        raise SwarmError(f"nobody used the code within {OFFER_SECONDS / 60:.0f} minutes", again)
    if outcome is Outcome.UNCONFIRMED:
        raise SwarmError(
            "somebody used the code, and the connection broke before it was sure that the invite arrived",
            f"ask the other side; if it has none, {again}",
        )
    if as_json:
        print_json({"given": True})
    narrate("the other side has the invite; the code has ended")


def _failure(failure: Failure, code: Code, named: bool) -> SwarmError:
    from sapo_edge.swarm.visits.accepting import Failure

    waiting = "check that the other side still waits"
    if failure is Failure.WRONG:
        return SwarmError(
            "the words are wrong, or somebody interfered; the code is used up", "ask the other side for a new one"
        )
    if failure is Failure.BROKEN:
        return SwarmError("the connection broke; the code may be used up", "ask the other side what it shows")
    if failure is Failure.NOBODY:
        return SwarmError(
            f"nobody waits under the number {code.number} there: the code was used, has ended, or is another one",
            f"{waiting}; a code works once",
        )
    if named:
        return SwarmError("no meeting place answers at that address", f"{waiting}, and compare the address")
    return SwarmError(
        f"nobody on this local network offers an invite under the number {code.number}",
        f"{waiting}; from another network, add --at and an address that it shows",
    )


def _run(function: Callable[[], Awaitable[T]], stopped: str) -> T:
    """Run a coroutine until it ends or a signal ends it.

    Raises:
        KeyboardInterrupt: after a signal.
    """
    import trio

    results: list[T] = []
    errors: list[SapoError] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(until_signal, nursery.cancel_scope.cancel)
            try:
                results.append(await function())
            except SapoError as error:
                errors.append(error)
            nursery.cancel_scope.cancel()

    trio.run(main)
    if errors:
        raise errors[0]
    if not results:
        narrate(stopped)
        raise KeyboardInterrupt
    return results[0]
