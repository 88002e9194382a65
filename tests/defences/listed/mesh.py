"""Defences of the GossipSub mesh: who gets every message unasked."""

from __future__ import annotations

from tests.defences.defence import Defences

gossip = Defences("sapo_edge/swarm/host/gossip.py", "tests/swarm/host/test_mesh.py")

DEFENCES = (
    gossip.condition(
        "grafts are bounded",
        "if sender_peer_id not in mesh and len(mesh) >= MAX_MESH and not self._is_dialled(sender_peer_id):",
        "test_grafts_do_not_multiply_what_is_forwarded",
    ),
    gossip(
        "the node grafts nobody that it does not need",
        "def _perform_opportunistic_grafting(",
        "def _perform_nothing(",
        "test_grafts_do_not_multiply_what_is_forwarded",
    ),
    gossip(
        "a network with many places in the mesh gives way",
        "return random.choice(most) if len(most) > len(own) + 1 else None",
        "return None",
        "test_one_machine_makes_room_in_a_full_mesh_for_others",
    ),
    gossip(
        "peers that this node dialled are in its mesh",
        "missing = MIN_DIALLED - sum(map(self._is_dialled, mesh))",
        "missing = 0",
        "test_a_crowd_in_the_mesh_does_not_keep_out_peers_that_this_node_dialled",
    ),
)
