"""Defences in `sapo_edge/swarm/host/identify.py`: what a peer says of itself."""

from __future__ import annotations

from tests.defences.defence import Defence

_IDENTIFY = "sapo_edge/swarm/host/identify.py"
_TESTS = "tests/swarm/host/test_identify.py::"
_BOUNDED = (_TESTS + "test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves",)

DEFENCES = (
    Defence(
        "nothing is accepted that a peer says unasked",
        _IDENTIFY,
        "    host.remove_stream_handler(ID_PUSH)\n",
        "",
        (_TESTS + "test_nothing_is_accepted_that_a_peer_pushes",),
    ),
    Defence(
        "the library's own exchange is replaced",
        _IDENTIFY,
        "    host._identify_peer = identify\n",
        "",
        _BOUNDED,
    ),
    Defence(
        "the size of what a peer says of itself",
        _IDENTIFY,
        "max_length=MAX_IDENTIFY_BYTES",
        "max_length=2**20",
        (_TESTS + "test_an_answer_that_is_none_is_not_kept",),
    ),
    Defence(
        "time for what a peer says of itself",
        _IDENTIFY,
        "            with trio.fail_after(IDENTIFY_SECONDS):\n",
        "            if True:\n",
        (_TESTS + "test_a_peer_that_says_nothing_holds_nothing_up",),
    ),
    Defence(
        "what a peer says of itself fails nothing",
        _IDENTIFY,
        "        except Exception:  # noqa: BLE001 - a peer chooses what it answers\n",
        "        except ZeroDivisionError:\n",
        (_TESTS + "test_an_answer_that_is_none_is_not_kept",),
    ),
    Defence(
        "protocols of a peer",
        _IDENTIFY,
        "answer.protocols[:MAX_PROTOCOLS]",
        "answer.protocols",
        _BOUNDED,
    ),
    Defence(
        "addresses of a peer",
        _IDENTIFY,
        "answer.listen_addrs[:MAX_ADDRESSES]",
        "answer.listen_addrs",
        _BOUNDED,
    ),
    Defence(
        "the length of a protocol's name",
        _IDENTIFY,
        "[name for name in names if len(name) <= MAX_ADDRESS_BYTES]",
        "names",
        (_TESTS + "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",),
    ),
    Defence(
        "the length of an address that is parsed",
        _IDENTIFY,
        "    if not 0 < len(raw) <= MAX_ADDRESS_BYTES:\n",
        "    if not raw:\n",
        (_TESTS + "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",),
    ),
    Defence(
        "addresses that nobody can read are left out",
        _IDENTIFY,
        "    except Exception:  # noqa: BLE001 - the library raises whatever its codecs raise\n",
        "    except ZeroDivisionError:\n",
        (_TESTS + "test_names_and_addresses_that_are_too_long_or_unreadable_are_left_out",),
    ),
    Defence(
        "what a peer said is forgotten when it leaves",
        _IDENTIFY,
        "            store.clear_peerdata(peer_id)\n",
        "            pass\n",
        _BOUNDED,
    ),
    Defence(
        "what a peer says after it left is not kept",
        _IDENTIFY,
        "    if peer_id in host.get_network().connections:\n",
        "    if True:\n",
        (_TESTS + "test_what_arrives_after_a_peer_left_is_not_kept",),
    ),
    Defence(
        "relayed peers do not say at which address a node is seen",
        _IDENTIFY,
        " and connection.muxed_conn.get_remote_address() is not None:",
        ":",
        (_TESTS + "test_who_comes_through_a_relay_does_not_say_where_this_node_is",),
    ),
)
