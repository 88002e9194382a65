"""Defences in `sapo_edge/swarm/rendezvous/`: what is believed of a public table of addresses."""

from __future__ import annotations

from tests.defences.defence import Defence

_RENDEZVOUS = "sapo_edge/swarm/rendezvous/rendezvous.py"
_DIALING = "sapo_edge/swarm/finding/dialing.py"
_TESTS = "tests/swarm/rendezvous/test_rendezvous.py::"
_NAMED = "tests/swarm/rendezvous/test_named.py::"
_CROWD = _TESTS + "test_however_many_addresses_are_named_few_are_kept_and_of_a_network_fewer"
_NONSENSE = _TESTS + "test_a_program_that_says_nonsense_or_ends_is_started_again"

DEFENCES = (
    Defence(
        "addresses of the DHT are bounded",
        _RENDEZVOUS,
        "if len(of_network) >= MAX_OF_NETWORK or len(self.waiting) >= MAX_PLACES:",
        "if len(of_network) >= MAX_OF_NETWORK:",
        (_TESTS + "test_ten_thousand_announced_addresses_take_the_room_of_a_few",),
    ),
    Defence(
        "a network has few addresses of the DHT",
        _RENDEZVOUS,
        "if len(of_network) >= MAX_OF_NETWORK or len(self.waiting) >= MAX_PLACES:",
        "if len(self.waiting) >= MAX_PLACES:",
        (_CROWD,),
    ),
    Defence(
        "an address of the DHT is tried once in a while",
        _RENDEZVOUS,
        "        self._tried[place] = self._clock()\n",
        "",
        (_TESTS + "test_a_place_is_tried_again_after_a_while",),
    ),
    Defence(
        "lines of the rendezvous are bounded",
        _RENDEZVOUS,
        "            if len(pending) > MAX_LINE:\n",
        "            if False:\n",
        (_TESTS + "test_a_line_without_an_end_ends_the_program",),
    ),
    Defence(
        "lines of the rendezvous are checked",
        _RENDEZVOUS,
        "                except (ValueError, RecursionError):\n"
        '                    self._tally.count("rendezvous lines that were not valid")\n',
        "                except (ZeroDivisionError, RecursionError):\n"
        '                    self._tally.count("rendezvous lines that were not valid")\n',
        (_NONSENSE,),
    ),
    Defence(
        "answers about other keys are ignored",
        _RENDEZVOUS,
        "                elif found.key in self._keys():\n",
        "                else:\n",
        (_TESTS + "test_what_the_dht_names_under_the_swarms_key_is_tried",),
    ),
    Defence(
        "keys of a private swarm are secret",
        _RENDEZVOUS,
        'swarm_tag(swarm, psk, f"rendezvous {day}")',
        'swarm_tag(swarm, None, f"rendezvous {day}")',
        (_TESTS + "test_a_key_is_of_one_day_and_of_one_swarm",),
    ),
    Defence(
        "the DHT names no address of the owner's network",
        _DIALING,
        "        if not self._networks().may_name(address, ()) or not self._is_spaced(address, trusted=False):\n",
        "        if not self._is_spaced(address, trusted=False):\n",
        (_NAMED + "test_only_public_addresses_of_other_networks_are_tried",),
    ),
    Defence(
        "addresses of the DHT share the rate of dials",
        _DIALING,
        "        if not self._bucket.take():\n            return None\n",
        "",
        (_NAMED + "test_addresses_of_the_dht_are_dialled_at_the_rate_of_all",),
    ),
)
