"""Identity of a node: an Ed25519 key, its libp2p peer id, a readable name, and backups.

The secret on disk (`sapo_edge/state/secret.py`) is the key's seed. Nothing here needs libp2p.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import base58

from sapo_edge.errors import StateError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

KEY_BYTES = 32
"""Length of a seed and of a public key."""
ID_PREFIX = bytes.fromhex("002408011220")
"""How a peer id begins, before its key: identity multihash (0x00) of 36 bytes, a protobuf with key type Ed25519 (1)."""
SIGNATURE_BYTES = 64
MAX_PEER_ID_CHARACTERS = 64
MIN_PASSPHRASE_CHARACTERS = 8
MAX_BACKUP_BYTES = 1024

_BACKUP = b"sapo-edge identity backup v1\n"
_SALT_BYTES = 16
# libsodium's "moderate" cost: 256 MB and about a second. Fixed, so that a file can't demand gigabytes.
_OPERATIONS, _MEMORY = 3, 256 * 1024 * 1024

_ADJECTIVES = (
    "amber", "brave", "calm", "clear", "coral", "crisp", "dusky", "eager", "early", "fair", "fleet", "frosty",
    "gentle", "golden", "green", "hazel", "humble", "ivory", "jolly", "keen", "kind", "lively", "lucid", "lunar",
    "mellow", "misty", "noble", "opal", "pale", "patient", "plain", "proud", "quick", "quiet", "rapid", "rosy",
    "rustic", "sandy", "serene", "silent", "silver", "sleepy", "smooth", "snowy", "solar", "spry", "steady", "still",
    "sunny", "swift", "tawny", "tender", "tidal", "true", "upbeat", "velvet", "vivid", "warm", "wild", "windy",
    "wise", "witty", "young", "zesty",
)  # fmt: skip
_ANIMALS = (
    "badger", "bear", "beaver", "bison", "bittern", "cat", "crane", "cricket", "crow", "curlew", "deer", "dolphin",
    "dove", "dragonfly", "eagle", "egret", "falcon", "ferret", "finch", "fox", "frog", "gecko", "goose", "gull",
    "hare", "hawk", "hedgehog", "heron", "ibex", "ibis", "jackdaw", "kestrel", "kite", "lark", "lizard", "lynx",
    "magpie", "marten", "mole", "moth", "newt", "nuthatch", "otter", "owl", "panda", "pelican", "plover", "puffin",
    "quail", "rabbit", "raven", "robin", "salmon", "seal", "shrew", "sparrow", "stork", "swallow", "swan", "tern",
    "thrush", "toad", "turtle", "wren",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """A node's key. The secret, its seed, has 32 bytes and is not part of the repr."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a secret has {KEY_BYTES} bytes, not {len(self.secret)}")

    @cached_property
    def _key(self) -> SigningKey:
        from nacl.signing import SigningKey

        return SigningKey(self.secret)

    @cached_property
    def public_key(self) -> bytes:
        """32 bytes with which others verify signatures."""
        return bytes(self._key.verify_key)

    @cached_property
    def peer_id(self) -> str:
        """The node's id in libp2p and in rollouts."""
        return peer_id_of(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature of data, 64 bytes."""
        return bytes(self._key.sign(data).signature)


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id of an Ed25519 public key, "12D3KooW..."; a ValueError unless that has 32 bytes."""
    if len(public_key) != KEY_BYTES:
        raise ValueError(f"a public key has {KEY_BYTES} bytes, not {len(public_key)}")
    text: bytes = base58.b58encode(ID_PREFIX + public_key)
    return text.decode("ascii")


@lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> bytes:
    """The public key in a peer id; a ValueError if the id is not one of an Ed25519 key."""
    # Decoding takes time quadratic in the length.
    if len(peer_id) > MAX_PEER_ID_CHARACTERS:
        raise ValueError("too long for a peer id")
    decoded: bytes = base58.b58decode(peer_id)
    public_key = decoded[len(ID_PREFIX) :]
    # The decoder ignores space at the end, but a key must have exactly one id.
    if not decoded.startswith(ID_PREFIX) or len(public_key) != KEY_BYTES or peer_id_of(public_key) != peer_id:
        raise ValueError("not the peer id of an Ed25519 key")
    return public_key


def verify(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether a signature of data is valid for a public key; False if either is malformed."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(public_key).verify(data, signature)
    except BadSignatureError:
        return False
    return True


def readable_name(peer_id: str) -> str:
    """A readable name for a peer id, such as "amber-otter-041". Two ids may have the same name."""
    digest = hashlib.sha256(b"sapo-edge name\0" + peer_id.encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    number, adjective = divmod(number, len(_ADJECTIVES))
    number, animal = divmod(number, len(_ANIMALS))
    return f"{_ADJECTIVES[adjective]}-{_ANIMALS[animal]}-{number % 1000:03d}"


def backup(secret: bytes, passphrase: str) -> bytes:
    """Encrypt a secret with a passphrase (argon2id, XSalsa20-Poly1305)."""
    from nacl.secret import SecretBox
    from nacl.utils import random

    if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
        raise StateError(
            f"the passphrase has {len(passphrase)} characters", f"give at least {MIN_PASSPHRASE_CHARACTERS}"
        )
    salt = random(_SALT_BYTES)
    return _BACKUP + salt + bytes(SecretBox(_derive_key(passphrase, salt)).encrypt(secret))


def restore(data: bytes, passphrase: str) -> bytes:
    """Decrypt a secret that `backup` encrypted."""
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if len(data) > MAX_BACKUP_BYTES or not data.startswith(_BACKUP):
        raise StateError("this is not a backup of an identity", "give the file that `sapo identity backup` wrote")
    salt, box = data[len(_BACKUP) :][:_SALT_BYTES], data[len(_BACKUP) + _SALT_BYTES :]
    if len(box) != SecretBox.NONCE_SIZE + SecretBox.MACBYTES + KEY_BYTES:
        raise StateError("the backup is cut off, or has data after its end", "use another copy of it")
    key = _derive_key(passphrase, salt)
    try:
        return bytes(SecretBox(key).decrypt(box))
    except CryptoError as error:
        raise StateError(
            "the backup can't be decrypted", "check the passphrase; if it is right, the file is damaged"
        ) from error


def _derive_key(passphrase: str, salt: bytes) -> bytes:
    from nacl.exceptions import CryptoError
    from nacl.pwhash import argon2id
    from nacl.secret import SecretBox

    try:
        # The same passphrase has several forms in Unicode, and keyboards differ in the one they send.
        normalized = unicodedata.normalize("NFKC", passphrase).encode()
    except UnicodeEncodeError as error:
        raise StateError("the passphrase is not valid text", "type it again") from error
    try:
        return bytes(argon2id.kdf(SecretBox.KEY_SIZE, normalized, salt, opslimit=_OPERATIONS, memlimit=_MEMORY))
    except (CryptoError, MemoryError) as error:
        # Too little memory is the only reason for libsodium to fail here.
        needs = f"too little memory: a passphrase needs {_MEMORY >> 20} MB"
        raise StateError(needs, "close other programs, and try again") from error
