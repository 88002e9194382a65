"""Pulls: requests for announced rollouts, for recent ones of a newcomer, for the manifest, and for its questions."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import trio
from libp2p.abc import IHost, INetStream

from sapo_edge.recent import Recent
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.host.host import direct_remotes
from sapo_edge.swarm.host.requests import Protocol, RequestError, RequestServer, request
from sapo_edge.swarm.host.traffic import Meter, address_of
from sapo_edge.swarm.judging.admission import CheckResult
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import (
    MAX_REQUEST_BYTES,
    MAX_REQUESTED,
    MAX_RESPONSE_BYTES,
    OWN,
    PIECE_BYTES,
    Request,
    decode_request,
    decode_response,
    encode_manifest_response,
    encode_piece_response,
    encode_request,
    encode_response,
)
from sapo_edge.swarm.wire.record import RawRecord
from sapo_edge.swarm.wire.rejection import Rejection

PULLS = Protocol(
    "/sapo-edge/pull/1.0.0",
    "pulls",
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    rate=2.0,
    burst=30.0,
    max_served=8,
    read_seconds=10.0,
    answer_seconds=20.0,
    total_seconds=60.0,  # the largest response at 9 KB a second
)
MAX_WANTED = 512
"""Most announced rollouts that wait; beyond that, the oldest of the peer that announced most are dropped."""
MAX_SOURCES = 4
"""Peers that are remembered as sources of one rollout."""
MAX_ATTEMPTS = 4
"""Requests for one rollout before it is dropped."""
RETRY_SECONDS = 2.0
"""Time until the second attempt; it doubles with each."""
MAX_PULLS = 4
"""Requests of this node at the same time, one a peer; one of them is reserved for a peer that delivered before."""
MAX_BACKOFF_SECONDS = 300.0
"""Longest time for which a peer that keeps failing is not asked; the shortest is `RETRY_SECONDS`."""
GUESSES_PER_SECOND, GUESS_BURST = 0.2, 4.0
"""Requests to peers that did not announce a rollout; false announcements must not cause more of them."""
LOOK_SECONDS = 0.1
"""Time between two looks through all that is wanted: peers may announce many rollouts, one by one."""
MAX_REMEMBERED_PEERS = 256
"""Peers whose answers are remembered."""


class PullServer:
    """Answers pulls of other peers from a member's records, within the meter's upload cap and budget of answers."""

    def __init__(self, host: IHost, member: Member, meter: Meter) -> None:
        self._host, self._member, self._meter = host, member, meter
        self._manifest = member.config.manifest.to_bytes()
        # A node that no stranger shall find does not tell strangers what it learns.
        own = {OWN} if member.config.contacts else set()
        self._digests = own | {hashlib.sha256(self._manifest).digest()}
        self._server = RequestServer(host, PULLS, self._respond, member.tally, self._refusal, member.blame)

    def start(self) -> None:
        self._server.start()

    async def _respond(self, data: bytes, stream: INetStream) -> bytes:
        try:
            request = decode_request(data)
        except WireError as error:
            raise RequestError("not a pull") from error
        response = await self._piece(request) if request.kind == "questions" else self._response(request)
        self._meter.served.charge(self._address(str(stream.muxed_conn.peer_id)), len(response))
        return response

    def _response(self, request: Request) -> bytes:
        limit = MAX_RESPONSE_BYTES - 1024
        if request.kind == "manifest":
            return encode_manifest_response(self._manifest if request.digests[0] in self._digests else None)
        if request.kind == "recent":
            own_swarm = request.swarm == self._member.swarm
            records = self._member.records.recent(request.count, limit) if own_swarm else []
        else:
            records = self._member.records.find(request.digests, limit)
        self._member.tally.count("rollouts served", len(records))
        return encode_response(records)

    async def _piece(self, request: Request) -> bytes:
        manifest, piece = self._member.config.manifest, b""
        for data in manifest.data:
            if data.sha256 == request.digests[0] and manifest.store is not None:
                try:
                    async with await trio.open_file(data.path(manifest.store), "rb") as file:
                        await file.seek(request.offset)
                        piece = await file.read(PIECE_BYTES)
                except OSError as error:
                    self._member.tally.fault("questions", error)
        return encode_piece_response(piece)

    def _refusal(self, peer_id: str) -> str:
        if self._member.is_ignored(peer_id):
            return "ignored peer"
        if self._meter.served.exhausted(self._address(peer_id)):
            return "the address has had too much"
        # Several responses at a time would each pass a cap that one of them uses up.
        upload, reserved = self._meter.upload, self._server.serving * MAX_RESPONSE_BYTES
        return "upload cap" if upload.rate and upload.level() <= reserved else ""

    def _address(self, peer_id: str) -> str:
        return address_of(direct_remotes(self._host, peer_id))


@dataclass
class _Want:
    sources: list[str] = field(default_factory=list)
    attempts: int = 0
    due: float = 0.0


class Puller:
    """Fetches announced rollouts from peers that may have them, within the meter's download cap.

    Args:
        neighbours: returns the peer ids of connected members of the swarm, best first.
        on_records: checks records of the peer that sent them.
    """

    def __init__(
        self,
        host: IHost,
        member: Member,
        meter: Meter,
        neighbours: Callable[[], Sequence[str]],
        on_records: Callable[[Sequence[RawRecord], str], CheckResult],
    ) -> None:
        self._host, self._member, self._tally = host, member, member.tally
        self._download, self._neighbours, self._on_records = meter.download, neighbours, on_records
        self._wanted: OrderedDict[bytes, _Want] = OrderedDict()
        self._busy: set[str] = set()
        # Failures in a row, and when to ask again; 0 failures for a peer that delivered.
        self._answers: Recent[str, tuple[int, float]] = Recent(MAX_REMEMBERED_PEERS)
        self._guesses = TokenBucket(GUESSES_PER_SECOND, GUESS_BURST, trio.current_time)
        self._changed = trio.Event()

    def want(self, digests: Sequence[bytes], sources: Sequence[str]) -> None:
        """Pull these rollouts, from `sources` before other peers."""
        for digest in digests:
            if digest in self._member.records:
                continue
            want = self._wanted.setdefault(digest, _Want())
            want.sources += [peer for peer in dict.fromkeys(sources) if peer not in want.sources]
            del want.sources[MAX_SOURCES:]
            if len(self._wanted) > MAX_WANTED:
                self._make_room()
        self._changed.set()

    def _make_room(self) -> None:
        ((source, _),) = Counter(want.sources[0] for want in self._wanted.values()).most_common(1)
        self._give_up(next(digest for digest, want in self._wanted.items() if want.sources[0] == source))

    def _give_up(self, digest: bytes) -> None:
        del self._wanted[digest]
        self._tally.count("announced rollouts given up")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                while not self._download.exhausted() and (batch := self._next()) is not None:
                    nursery.start_soon(self._pull, *batch)
                self._changed = trio.Event()
                with trio.move_on_after(0.5):
                    await self._changed.wait()
                await trio.sleep(LOOK_SECONDS)

    async def recent(self, peer_id: str, count: int) -> None:
        """Ask a peer for its most recent rollouts."""
        data = encode_request(Request("recent", swarm=self._member.swarm, count=count))
        try:
            records = await self._ask(peer_id, data)
            self._tally.count("rollouts of backfill", len(records))
            if not self._on_records(records, peer_id).blames_sender and records:
                self._remember(peer_id, 0)
        except Exception as error:  # noqa: BLE001 - backfill is optional
            self._tally.fault("backfill", error)

    def _next(self) -> tuple[str, list[bytes]] | None:
        """A free peer, and the digests to request from it."""
        slots = 1 if self._download.rate else MAX_PULLS
        if len(self._busy) >= slots:
            return None
        now = trio.current_time()
        only_proven = slots > 1 and sum(not self._is_proven(peer) for peer in self._busy) >= slots - 1
        neighbours = [peer for peer in self._neighbours() if self._answers.get(peer, (0, 0.0))[1] <= now]
        proven = {peer for peer in neighbours if self._is_proven(peer)}
        free = {peer for peer in neighbours if peer not in self._busy and (peer in proven or not only_proven)}
        batches: dict[str, list[bytes]] = {}
        # Who announces much announces it alike.
        chosen: dict[tuple[tuple[str, ...], int], str | None] = {}
        for digest, want in list(self._wanted.items()):
            if digest in self._member.records:
                del self._wanted[digest]
            elif want.due <= now:
                key = tuple(want.sources), want.attempts
                if key not in chosen:
                    chosen[key] = self._source(want, neighbours, proven)
                if (source := chosen[key]) in free:
                    batches.setdefault(source, []).append(digest)
        for source in sorted(batches, key=lambda peer: (peer in proven, len(batches[peer])), reverse=True):
            announced = [digest for digest in batches[source] if source in self._wanted[digest].sources]
            if announced or self._guesses.take():
                break
        else:
            return None
        digests = (announced or batches[source])[:MAX_REQUESTED]
        for digest in digests:
            want = self._wanted[digest]
            want.attempts += 1
            want.due = now + PULLS.total_seconds
        self._busy.add(source)
        return source, digests

    @staticmethod
    def _source(want: _Want, neighbours: Sequence[str], proven: Set[str]) -> str | None:
        """The next peer to ask: sources in turn, those that delivered before first, then other neighbours."""
        sources = sorted((peer for peer in want.sources if peer in neighbours), key=lambda peer: peer not in proven)
        candidates = sources + [peer for peer in neighbours if peer not in want.sources]
        return candidates[want.attempts % len(candidates)] if candidates else None

    async def _pull(self, peer_id: str, digests: list[bytes]) -> None:
        try:
            data = encode_request(Request("rollouts", digests=tuple(digests)))
            records = [record for record in await self._ask(peer_id, data) if record.digest in digests]
            self._tally.count("rollouts pulled", len(records))
            result = self._on_records(records, peer_id)
            # With a false signature, the bytes are the right ones, and another peer may have the true one.
            again = result.blames_sender or Rejection.IGNORED in result.rejections
            for record in [signed.record for signed in result.accepted] if again else records:
                self._wanted.pop(record.digest, None)
            if records and not result.blames_sender:
                self._remember(peer_id, 0)
        except Exception as error:  # noqa: BLE001 - one pull must not end the others
            self._tally.fault("pull", error)
        finally:
            self._busy.discard(peer_id)
            self._retry(digests)
            self._changed.set()

    def _retry(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            want = self._wanted.get(digest)
            if want is not None and want.attempts >= MAX_ATTEMPTS:
                self._give_up(digest)
            elif want is not None:
                want.due = trio.current_time() + RETRY_SECONDS * 2 ** (want.attempts - 1)

    def _is_proven(self, peer_id: str) -> bool:
        """Whether a peer answered the last request, or is known for good rollouts if none was sent."""
        answered = self._answers.get(peer_id)
        return answered[0] == 0 if answered is not None else self._member.admission.reputation.is_established(peer_id)

    def _remember(self, peer_id: str, failures: int) -> None:
        backoff = min(RETRY_SECONDS * 2 ** (failures - 1), MAX_BACKOFF_SECONDS) if failures else 0.0
        self._answers[peer_id] = failures, trio.current_time() + backoff

    async def _ask(self, peer_id: str, data: bytes) -> Sequence[RawRecord]:
        try:
            response = await request(self._host, peer_id, PULLS, data)
            return decode_response(response).records
        except RequestError:
            self._tally.count("pulls failed")
        except WireError:
            self._tally.count("pulls answered with garbage")
        self._remember(peer_id, min(self._answers.get(peer_id, (0, 0.0))[0], 16) + 1)
        return ()
