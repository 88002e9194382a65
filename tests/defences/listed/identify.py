"""Defences in `sapo_edge/swarm/host/identify.py`: what a peer says of itself."""

from __future__ import annotations

from tests.defences.defence import Defences

identify = Defences("sapo_edge/swarm/host/identify.py", "tests/swarm/host/test_identify.py")

DEFENCES = (
    identify(
        "nothing is accepted that a peer says unasked",
        "    host.remove_stream_handler(ID_PUSH)\n",
        "",
        "test_nothing_is_accepted_that_a_peer_pushes",
    ),
    identify(
        "the library's own exchange is replaced",
        "    host._identify_peer = identify\n",
        "",
        "test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves",
    ),
    identify(
        "the size of what a peer says of itself",
        "max_length=MAX_IDENTIFY_BYTES",
        "max_length=2**20",
        "test_an_answer_that_is_none_is_not_kept",
    ),
    identify(
        "time for what a peer says of itself",
        "with trio.fail_after(IDENTIFY_SECONDS):",
        "if True:",
        "test_a_peer_that_says_nothing_holds_nothing_up",
    ),
    identify(
        "what a peer says of itself fails nothing",
        "except Exception:  # noqa: BLE001 - a peer chooses what it answers",
        "except ZeroDivisionError:",
        "test_an_answer_that_is_none_is_not_kept",
    ),
    identify(
        "protocols of a peer",
        "answer.protocols[:MAX_PROTOCOLS]",
        "answer.protocols",
        "test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves",
    ),
    identify(
        "addresses of a peer",
        "answer.listen_addrs[:MAX_ADDRESSES]",
        "answer.listen_addrs",
        "test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves",
    ),
    identify(
        "the length of a protocol's name",
        "[name for name in names if len(name) <= MAX_ADDRESS_BYTES]",
        "names",
        "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",
    ),
    identify(
        "the length of an address that is parsed",
        "if not 0 < len(raw) <= MAX_ADDRESS_BYTES:",
        "if not raw:",
        "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",
    ),
    identify(
        "addresses that nobody can read are left out",
        "except Exception:  # noqa: BLE001 - the library raises whatever its codecs raise",
        "except ZeroDivisionError:",
        "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",
    ),
    identify(
        "what a peer said is forgotten when it leaves",
        "store.clear_peerdata(peer_id)",
        "pass",
        "test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves",
    ),
    identify(
        "what a peer says after it left is not kept",
        "if peer_id in host.get_network().connections:",
        "if True:",
        "test_what_arrives_after_a_peer_left_is_not_kept",
    ),
    identify(
        "relayed peers do not say at which address a node is seen",
        " and connection.muxed_conn.get_remote_address() is not None:",
        ":",
        "test_who_comes_through_a_relay_does_not_say_where_this_node_is",
    ),
)
