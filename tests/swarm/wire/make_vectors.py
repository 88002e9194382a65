"""Test vectors of docs/network.md. `python -m tests.swarm.wire.make_vectors` writes them after a change.

They are data for other implementations: bytes in hexadecimal, integers as decimal text (JavaScript's numbers end at
2**53). Compressed bytes differ between versions of zlib, so a compressed message is only decoded.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from sapo_edge.rollout import MAX_INTEGER, Answer, Rollout, TaskRef
from sapo_edge.swarm.codes.claim import Claim, encode_claim, number_tag
from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.codes.handover import Inviter, Joiner, Offer
from sapo_edge.swarm.joining.identity import Identity, readable_name
from sapo_edge.swarm.joining.invite import Swarm, swarm_id
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.exchange import swarm_tag
from sapo_edge.swarm.wire.messages import Message, Request, Response
from sapo_edge.swarm.wire.record import CONTEXT, RawRecord, decode_record, encode_body, sign_rollout, verify_record

DIRECTORY = Path(__file__).parent / "vectors"
SECRETS = (bytes(32), bytes(range(32)), b"\xff" * 32)
ONE, TWO, _ = (Identity(secret) for secret in SECRETS)
SWARM, KEY = bytes.fromhex("5a" * 32), bytes.fromhex("c3" * 32)
ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of the group of Ed25519."""
ROLLOUTS = {
    "smallest": Rollout(TaskRef("", "", 0, 0), "", "", (Answer("", False),), ONE.peer_id, 0, 0, 0.0),
    "usual": Rollout(
        TaskRef("sums", "0.1.25", 1234567890123456789, 42),
        "State the final answer to the following arithmetic problem: 3 + 4 =", "7",
        (Answer("<answer>7</answer>", True), Answer("Let me think. 3 + 4 is", False)),
        TWO.peer_id, 17, 301, 1763712345.25,
    ),
    "largest integers, all of Unicode": Rollout(
        TaskRef("ä", "\N{SNOWMAN}", MAX_INTEGER, MAX_INTEGER),
        "NUL \0, \N{PILE OF POO}, \N{COMBINING ACUTE ACCENT}", "\U0010ffff",
        tuple(Answer(str(number), number % 2 == 0) for number in range(32)),
        TWO.peer_id, MAX_INTEGER, MAX_INTEGER, 137438953471.5,
    ),
}  # fmt: skip
CODES = (((7, ("guitar", "revolver")), (1, 2)), ((999, ("aardvark", "aardvark")), (ORDER - 1, 2**250 + 3)))


def make() -> dict[str, Any]:
    return {
        "identities.json": [_identity(secret) for secret in SECRETS],
        "swarms.json": [_swarm(SWARM, None), _swarm(SWARM, KEY)], "rollouts.json": _rollouts(),
        "messages.json": _messages(), "requests.json": _requests(), "responses.json": _responses(),
        "invalid.json": _invalid(), "codes.json": [_code(Code(*code), *scalars) for code, scalars in CODES],
    }  # fmt: skip


def vectors(name: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((DIRECTORY / name).read_text("ascii"))
    return content


def as_text(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _identity(secret: bytes) -> dict[str, str]:
    identity = Identity(secret)
    return {
        "secret": secret.hex(), "public_key": identity.public_key.hex(), "peer_id": identity.peer_id,
        "name": readable_name(identity.peer_id), "signature_of_00ff": identity.sign(b"\x00\xff").hex(),
    }  # fmt: skip


def _swarm(manifest: bytes, key: bytes | None) -> dict[str, Any]:
    swarm = swarm_id(manifest, key)
    return {
        "manifest": manifest.hex(), "key": None if key is None else key.hex(), "swarm": swarm.hex(),
        "topic": f"/sapo-edge/1/{swarm.hex()}", "peers_tag": swarm_tag(manifest, key, "peers").hex(),
    }  # fmt: skip


def _code(code: Code, inviter_scalar: int, joiner_scalar: int) -> dict[str, str]:
    """An exchange with chosen scalars; the nonce is the end of the inviter's."""
    line = Swarm(SWARM, "starter").to_line()
    inviter = Inviter(Offer(code, line), lambda count: inviter_scalar.to_bytes(64, "big")[-count:])
    joiner = Joiner(code, lambda count: joiner_scalar.to_bytes(64, "big")[-count:])
    guess = joiner.guess(inviter.hello)
    sealed = inviter.answer(guess)
    assert joiner.open(sealed) == line
    return {
        "code": str(code), "announced": number_tag(code.number)[:8].hex(),
        "claim_of_inviter": encode_claim(Claim(code.number, True)).hex(),
        "claim_of_joiner": encode_claim(Claim(code.number, False)).hex(), "inviter_scalar": str(inviter_scalar),
        "joiner_scalar": str(joiner_scalar), "hello": inviter.hello.hex(), "guess": guess.hex(), "invite": line,
        "sealed": sealed.hex(), "receipt": joiner.receipt.hex(),
    }  # fmt: skip


def rollout_fields(rollout: Rollout) -> dict[str, Any]:
    ref = rollout.ref
    return {
        "author": rollout.author, "round": str(rollout.round), "sequence": str(rollout.sequence), "time": rollout.time,
        "task": {"entry": ref.entry, "version": ref.version, "seed": str(ref.seed), "index": str(ref.index)},
        "question": rollout.question, "ground_truth": rollout.ground_truth,
        "answers": [[answer.text, answer.ended] for answer in rollout.answers],
    }  # fmt: skip


def _author(rollout: Rollout) -> Identity:
    return ONE if rollout.author == ONE.peer_id else TWO


def _record(rollout: Rollout) -> RawRecord:
    return sign_rollout(rollout, SWARM, _author(rollout)).record


def _rollouts() -> list[dict[str, Any]]:
    vectors = [_rollout(name, rollout, _record(rollout), True) for name, rollout in ROLLOUTS.items()]
    usual = ROLLOUTS["usual"]
    longer = _body(extra={"x": [1, {"y": None}]})
    longer["task"]["config"] = "ignored"
    longer["answers"] = [[*answer, "ignored"] for answer in longer["answers"]]
    longer["time"] = int(longer["time"])
    later = _signed(longer)
    of_later = Rollout(usual.ref, usual.question, usual.ground_truth, usual.answers, TWO.peer_id, 17, 301, 1763712345.0)
    return [*vectors, _rollout("with fields of later versions, and a time that is an integer", of_later, later, False)]


def _rollout(name: str, rollout: Rollout, record: RawRecord, canonical: bool) -> dict[str, Any]:
    """Canonical: encoding the fields gives exactly the body."""
    signed = decode_record(record)
    assert verify_record(signed) and (signed.rollout, signed.swarm) == (rollout, SWARM)
    assert (encode_body(rollout, SWARM) == record.body) is canonical
    return {
        "name": name, "canonical": canonical, "secret": _author(rollout).secret.hex(), "swarm": SWARM.hex(),
        "rollout": rollout_fields(rollout), "body": record.body.hex(), "digest": record.digest.hex(),
        "signed": (CONTEXT + record.body).hex(), "signature": record.signature.hex(),
    }  # fmt: skip


def _body(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = msgpack.unpackb(encode_body(ROLLOUTS["usual"], SWARM))
    return {**body, **(extra or {})}


def _signed(body: dict[str, Any] | bytes) -> RawRecord:
    data = body if isinstance(body, bytes) else msgpack.packb(body)
    return RawRecord(data, TWO.sign(CONTEXT + data))


def _pairs(records: list[RawRecord]) -> list[list[bytes]]:
    return [[record.body, record.signature] for record in records]


def _hex_pairs(records: Sequence[RawRecord]) -> list[dict[str, str]]:
    return [{"body": record.body.hex(), "signature": record.signature.hex()} for record in records]


def _messages() -> list[dict[str, Any]]:
    usual = _record(ROLLOUTS["usual"])
    digests = [_record(rollout).digest for rollout in ROLLOUTS.values()]
    return [
        _message("nothing", [], [], {}),
        _message("a rollout and three announcements", [usual], digests, {}),
        _message("announcements alone, and a field of a later version", [], digests[:1], {"later": {"a": [1, 2]}}),
    ]


def _message(name: str, records: list[RawRecord], announced: list[bytes], extra: dict[str, Any]) -> dict[str, Any]:
    unpacked = msgpack.packb({"v": 1, "swarm": SWARM, "rollouts": _pairs(records), "have": announced, **extra})
    assert wire.decode_message(b"\0" + unpacked) == Message(SWARM, tuple(records), tuple(announced))
    return {
        "name": name, "swarm": SWARM.hex(), "rollouts": _hex_pairs(records),
        "announced": [digest.hex() for digest in announced], "unpacked": unpacked.hex(),
        "plain": (b"\0" + unpacked).hex(), "compressed": (b"\1" + zlib.compress(unpacked, 9)).hex(),
    }  # fmt: skip


def _requests() -> list[dict[str, Any]]:
    digest = _record(ROLLOUTS["usual"]).digest
    requests = {
        "rollouts by digest": Request("rollouts", digests=(digest, bytes(32))),
        "recent rollouts": Request("recent", swarm=SWARM, count=32),
        "a manifest": Request("manifest", digests=(SWARM,)),
        "a piece of questions": Request("questions", digests=(SWARM,), offset=262144),
    }
    return [_request(name, request) for name, request in requests.items()]


def _request(name: str, request: Request) -> dict[str, Any]:
    data = wire.encode_request(request)
    assert wire.decode_request(data) == request
    return {
        "name": name, "kind": request.kind, "digests": [item.hex() for item in request.digests],
        "swarm": request.swarm.hex(), "count": request.count, "offset": request.offset, "data": data.hex(),
        "frame": _frame(data),
    }  # fmt: skip


def _responses() -> list[dict[str, Any]]:
    record, manifest, piece = _record(ROLLOUTS["usual"]), b"\x80", b"\x95\xa1?"
    return [
        _response("a rollout", Response((record,)), wire.encode_response([record])),
        _response("no rollout", Response(), wire.encode_response([])),
        _response("a manifest", Response(manifest=manifest), wire.encode_manifest_response(manifest)),
        _response("no manifest", Response(), wire.encode_manifest_response(None)),
        _response("a piece of questions", Response(piece=piece), wire.encode_piece_response(piece)),
        _response("no questions", Response(), wire.encode_piece_response(b"")),
    ]


def _response(name: str, response: Response, data: bytes) -> dict[str, Any]:
    assert wire.decode_response(data) == response
    return {
        "name": name, "rollouts": _hex_pairs(response.records),
        "manifest": None if response.manifest is None else response.manifest.hex(), "piece": response.piece.hex(),
        "data": data.hex(), "frame": _frame(data),
    }  # fmt: skip


def _frame(data: bytes) -> str:
    return (len(data).to_bytes(4, "big") + data).hex()


def _invalid() -> list[dict[str, Any]]:
    return [*_invalid_records(), *_invalid_messages(), *_invalid_frames()]


def _invalid_records() -> list[dict[str, Any]]:
    usual = _record(ROLLOUTS["usual"])
    by_another = Identity(SECRETS[2]).sign(CONTEXT + usual.body)
    half = bytes(usual.signature[:32])
    # S + L: the same signature to whoever does not check that S is below the group's order L.
    malleable = half + (int.from_bytes(usual.signature[32:], "little") + ORDER).to_bytes(32, "little")
    small_order = bytes([1]) + bytes(31)
    weak = _body({"author": small_order})
    cases: list[tuple[str, RawRecord, str]] = [
        ("another version", _signed(_body({"v": 2})), "version"),
        ("the version is no number", _signed(_body({"v": "1"})), "shape"),
        ("the version stands last", _signed({**{k: v for k, v in _body().items() if k != "v"}, "v": 1}), "shape"),
        ("author before swarm", _signed(_reordered()), "shape"),
        ("an author of 31 bytes", _signed(_body({"author": TWO.public_key[:31]})), "shape"),
        ("a field is missing", _signed({k: v for k, v in _body().items() if k != "question"}), "shape"),
        ("a field twice", _signed(_twice()), "shape"),
        ("a key that is no text", _signed(_body({7: 7})), "shape"),  # type: ignore[dict-item]
        ("a key of bytes", _signed(_body({b"x": 7})), "shape"),  # type: ignore[dict-item]
        ("something follows", _signed(usual.body + b"\xc0"), "shape"),
        ("cut off", _signed(usual.body[:-1]), "shape"),
        ("an extension type", _signed(_body({"later": msgpack.ExtType(5, b"x")})), "shape"),
        ("five levels", _signed(_body({"later": [[[[1]]]]})), "shape"),
        ("no answers", _signed(_body({"answers": []})), "shape"),
        ("33 answers", _signed(_body({"answers": [["", True]] * 33})), "shape"),
        ("an answer of 8193 bytes", _signed(_body({"answers": [["x" * 8193, True]]})), "shape"),
        ("an answer without its end", _signed(_body({"answers": [["x"]]})), "shape"),
        ("ended is a number", _signed(_body({"answers": [["x", 1]]})), "shape"),
        ("not UTF-8", _signed(msgpack.packb(_body({"question": "xyzzy"})).replace(b"xyzzy", b"xy\xffzy")), "shape"),
        ("half a surrogate pair", _signed(_surrogate()), "shape"),
        ("text as bytes", _signed(_body({"question": b"q"})), "shape"),
        ("a negative round", _signed(_body({"round": -1})), "shape"),
        ("a round of 2**63", _signed(_body({"round": 2**63})), "shape"),
        ("a round that is a float", _signed(_body({"round": 1.0})), "shape"),
        ("a time that is not a number", _signed(_body({"time": float("nan")})), "shape"),
        ("an infinite time", _signed(_body({"time": float("inf")})), "shape"),
        ("a time before 1970", _signed(_body({"time": -1.0})), "shape"),
        ("a time of 2**37", _signed(_body({"time": 2.0**37})), "shape"),
        ("an entry of 129 bytes", _signed(_body({"task": {**_body()["task"], "entry": "e" * 129}})), "shape"),
        ("a signature of 63 bytes", RawRecord(usual.body, usual.signature[:63]), "shape"),
        ("signed by another key", RawRecord(usual.body, by_another), "signature"),
        ("signed without the context", RawRecord(usual.body, TWO.sign(usual.body)), "signature"),
        ("changed after it was signed", RawRecord(usual.body.replace(b"7", b"8", 1), usual.signature), "signature"),
        ("a signature whose S is not below L", RawRecord(usual.body, malleable), "signature"),
        ("a key of small order", RawRecord(msgpack.packb(weak), small_order + bytes(32)), "signature"),
        ("a signature whose R is of small order", RawRecord(usual.body, _without_r(CONTEXT + usual.body)), "signature"),
        ("of another swarm", sign_rollout(ROLLOUTS["usual"], bytes(32), TWO).record, "swarm"),
    ]
    return [
        {
            "name": name, "kind": "record", "swarm": SWARM.hex(), "body": record.body.hex(),
            "signature": record.signature.hex(), "reason": reason,
        }
        for name, record, reason in cases
    ]  # fmt: skip


def _without_r(data: bytes) -> bytes:
    """A signature of TWO whose R is the neutral element: S is the key times the hash, and the equation holds."""
    scalar = bytearray(hashlib.sha512(TWO.secret).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 63 | 64
    neutral = bytes([1]) + bytes(31)
    challenge = hashlib.sha512(neutral + TWO.public_key + data).digest()
    product = int.from_bytes(challenge, "little") * int.from_bytes(scalar, "little") % ORDER
    return neutral + product.to_bytes(32, "little")


def _reordered() -> dict[str, Any]:
    body = _body()
    return {"v": 1, "author": body.pop("author"), **body}


def _twice() -> bytes:
    body: bytes = msgpack.packb(_body())
    return bytes([body[0] + 1]) + body[1:] + bytes(msgpack.packb("round")) + bytes(msgpack.packb(1))


def _surrogate() -> bytes:
    return bytes(msgpack.packb(_body({"question": "xyz"})).replace(b"xyz", b"\xed\xa0\x80"))


def _invalid_messages() -> list[dict[str, Any]]:
    usual = _record(ROLLOUTS["usual"])
    good: dict[str, Any] = {"v": 1, "swarm": SWARM, "rollouts": _pairs([usual]), "have": []}
    packed = zlib.compress(msgpack.packb(good))
    cases: list[tuple[str, bytes, str]] = [
        ("empty", b"", "shape"),
        ("an unknown compression", b"\2" + packed, "shape"),
        ("compressed data that is damaged", b"\1" + packed[:20] + b"\0\0\0" + packed[23:], "shape"),
        ("compressed data that is cut off", b"\1" + packed[:-1], "shape"),
        ("compressed data that goes on", b"\1" + packed + b"\0", "shape"),
        ("half a megabyte and a byte of zeros", b"\1" + zlib.compress(bytes(512 * 1024 + 1), 9), "size"),
        ("deflated without zlib's header", b"\1" + packed[2:-4], "shape"),
        ("another version", _plain({**good, "v": 2}), "version"),
        ("the version stands last", _plain({**{k: v for k, v in good.items() if k != "v"}, "v": 1}), "shape"),
        ("no map", b"\0" + msgpack.packb([1, 2]), "shape"),
        ("a swarm of 31 bytes", _plain({**good, "swarm": SWARM[:31]}), "shape"),
        ("no rollouts", _plain({key: value for key, value in good.items() if key != "rollouts"}), "shape"),
        ("65 rollouts", _plain({**good, "rollouts": [[b"", bytes(64)]] * 65}), "shape"),
        ("65 announcements", _plain({**good, "have": [bytes(32)] * 65}), "shape"),
        ("an announcement of 31 bytes", _plain({**good, "have": [bytes(31)]}), "shape"),
        ("a rollout without its signature", _plain({**good, "rollouts": [[usual.body]]}), "shape"),
        ("a rollout that is a map", _plain({**good, "rollouts": [{"body": usual.body}]}), "shape"),
        ("a body that is text", _plain({**good, "rollouts": [["body", usual.signature]]}), "shape"),
        ("too many values", _plain({**good, "later": [[0] * 32] * 32}), "shape"),
    ]
    return [{"name": name, "kind": "message", "data": data.hex(), "reason": reason} for name, data, reason in cases]


def _plain(fields: dict[str, Any]) -> bytes:
    return b"\0" + bytes(msgpack.packb(fields))


def _invalid_frames() -> list[dict[str, Any]]:
    requests: dict[str, dict[str, Any]] = {
        "an unknown kind": {"v": 1, "kind": "everything"},
        "no digests": {"v": 1, "kind": "rollouts", "digests": []},
        "33 digests": {"v": 1, "kind": "rollouts", "digests": [bytes(32)] * 33},
        "65 recent ones": {"v": 1, "kind": "recent", "swarm": SWARM, "count": 65},
        "no recent ones": {"v": 1, "kind": "recent", "swarm": SWARM, "count": 0},
        "a digest as text": {"v": 1, "kind": "manifest", "digest": SWARM.hex()},
        "questions behind their end": {"v": 1, "kind": "questions", "digest": SWARM, "offset": 64_000_001},
        "another version": {"v": 2, "kind": "recent", "swarm": SWARM, "count": 1},
    }
    responses: dict[str, dict[str, Any]] = {
        "neither rollouts nor a manifest": {"v": 1},
        "an empty manifest": {"v": 1, "manifest": b""},
        "a piece of an unknown format": {"v": 1, "questions": b"\2?"},
        "another version": {"v": 2, "rollouts": []},
    }
    groups = (("request", requests), ("response", responses))
    cases = [(name, kind, fields) for kind, group in groups for name, fields in group.items()]
    reasons = {1: "shape", 2: "version"}
    return [
        {"name": name, "kind": kind, "data": msgpack.packb(fields).hex(), "reason": reasons[fields["v"]]}
        for name, kind, fields in cases
    ]


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, content in make().items():
        (DIRECTORY / name).write_text(as_text(content), "ascii")
