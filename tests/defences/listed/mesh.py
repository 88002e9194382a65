"""Defences of the GossipSub mesh: who gets every message unasked."""

from __future__ import annotations

from tests.defences.defence import Defence

_PUBSUB = "sapo_edge/swarm/host/pubsub.py"
_TESTS = "tests/swarm/host/test_mesh.py::"

DEFENCES = (
    Defence(
        "grafts are bounded",
        _PUBSUB,
        "if sender_peer_id not in mesh and len(mesh) >= MAX_MESH and not self._is_dialled(sender_peer_id):",
        "if False:",
        (_TESTS + "test_grafts_do_not_multiply_what_is_forwarded",),
    ),
    Defence(
        "the node grafts nobody that it does not need",
        _PUBSUB,
        "    def _perform_opportunistic_grafting(",
        "    def _perform_nothing(",
        (_TESTS + "test_grafts_do_not_multiply_what_is_forwarded",),
    ),
    Defence(
        "a network with many places in the mesh gives way",
        _PUBSUB,
        "return random.choice(most) if len(most) > len(own) + 1 else None",
        "return None",
        (_TESTS + "test_one_machine_makes_room_in_a_full_mesh_for_others",),
    ),
    Defence(
        "peers that this node dialled are in its mesh",
        _PUBSUB,
        "missing = MIN_DIALLED - sum(map(self._is_dialled, mesh))",
        "missing = 0",
        (_TESTS + "test_a_crowd_in_the_mesh_does_not_keep_out_peers_that_this_node_dialled",),
    ),
)
