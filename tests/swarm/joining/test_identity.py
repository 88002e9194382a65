"""Keys, ids and names of nodes, and backups of them."""

from __future__ import annotations

import hashlib
from unittest.mock import Mock

import base58
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.errors import StateError
from sapo_edge.swarm.joining import identity
from sapo_edge.swarm.joining.identity import Identity, backup, peer_id_of, public_key_of, readable_name, restore, verify
from tests.defences.defence import fails_without
from tests.swarm.wire import make_vectors

US = Identity(b"\x07" * 32)
EARLIER = bytes.fromhex(
    "7361706f2d65646765206964656e74697479206261636b75702076310ab910c477a80e93e9c16aa7de549fc49c21a3210b1eda993c797fab"
    "b17b8f51b4216e084fa2356910daaef38a35dff8e24efca38ce2d7d86752d7366850c3ec90a85b0d83afcbf286e5ace434ccd21c97c017ee"
    "0ada19b241"
)
"""A backup of it, with the passphrase "correct horse"."""
OF_RSA = base58.b58encode(b"\x12\x20" + hashlib.sha256(b"key").digest()).decode()
"""An RSA key is not in its id."""
OF_ANOTHER_KIND = base58.b58encode(bytes.fromhex("002408021220") + US.public_key).decode()
"""The id of a key of the same length."""


@pytest.mark.parametrize("secret", make_vectors.SECRETS)
def test_a_secret_gives_the_key_and_id_of_libp2p(secret: bytes) -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    own, theirs = Identity(secret), create_new_key_pair(secret)
    assert own.public_key == theirs.public_key.to_bytes()
    assert own.peer_id == str(ID.from_pubkey(theirs.public_key))
    assert public_key_of(own.peer_id) == own.public_key == ID.from_string(own.peer_id).extract_public_key().to_bytes()
    assert own.sign(b"\x00\xff") == theirs.private_key.sign(b"\x00\xff")


@fails_without("swarm/joining/identity.py", "SignatureError:\n        return False", "SignatureError: return True")
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100), st.integers(0, 511))
def test_a_signature_is_valid_only_for_its_key_and_data(secret: bytes, data: bytes, bit: int) -> None:
    signer = Identity(secret)
    signature = signer.sign(data)
    flipped = bytes(byte ^ (1 << bit % 8 if place == bit // 8 else 0) for place, byte in enumerate(signature))
    assert verify(signer.public_key, data, signature)
    assert not verify(signer.public_key, data, flipped)
    assert not verify(signer.public_key, data + b"\0", signature)
    assert verify(US.public_key, data, signature) is (signer == US)


@fails_without("swarm/joining/identity.py", " or peer_id_of(public_key) != peer_id:", ":")
@pytest.mark.parametrize(
    "text",
    [US.peer_id + " ", US.peer_id + "\n", "1" + US.peer_id, US.peer_id[:-1], "z" * 1_000_000, OF_RSA, OF_ANOTHER_KIND],
    ids=["space", "newline", "a leading zero", "cut off", "long", "a hash", "another kind"],
)
def test_a_key_has_exactly_one_id(text: str) -> None:
    with pytest.raises(ValueError):
        public_key_of(text)


@fails_without("swarm/joining/identity.py", "@lru_cache(maxsize=4096)", "@lru_cache(maxsize=None)")
def test_so_many_ids_that_others_make_up_are_remembered() -> None:
    assert public_key_of.cache_info().maxsize == 4096


@fails_without("swarm/joining/identity.py", "if len(peer_id) > MAX_PEER_ID_CHARACTERS:")
def test_a_long_text_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "z" * identity.MAX_PEER_ID_CHARACTERS
    monkeypatch.setattr(base58, "b58decode", decode := Mock(return_value=b""))
    for text in (longest, longest + "z"):
        with pytest.raises(ValueError):
            public_key_of(text)
    decode.assert_called_once_with(longest)


@fails_without("swarm/joining/identity.py", "if len(self.secret) != KEY_BYTES:")
@fails_without("swarm/joining/identity.py", "if len(public_key) != KEY_BYTES:")
@fails_without("swarm/joining/identity.py", "if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:")
def test_keys_have_32_bytes_and_signatures_64() -> None:
    for size in (0, 31, 33):
        for make in (Identity, peer_id_of):
            with pytest.raises(ValueError):
                make(bytes(size))
    for key, signature in ((0, 64), (31, 64), (32, 0), (32, 65)):
        assert not verify(bytes(key), b"", bytes(signature))


@fails_without("swarm/joining/identity.py", "secret: bytes = field(repr=False)", "secret: bytes")
def test_a_secret_is_never_shown() -> None:
    assert "07" not in repr(US) and "secret" not in repr(US)


def test_names_are_spread_over_all_words() -> None:
    names = {readable_name(peer_id_of(number.to_bytes(32, "big"))) for number in range(2000)}
    words = {word for name in names for word in name.split("-")[:2]}
    assert len(names) > 1995 and len(words) == 128 and all(name.isascii() for name in names)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive keys in milliseconds instead of a second."""
    monkeypatch.setattr(identity, "_OPERATIONS", 1)
    monkeypatch.setattr(identity, "_MEMORY", 8192)


@pytest.mark.usefixtures("quick")
@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=40))
def test_only_its_passphrase_opens_a_backup(secret: bytes, passphrase: str) -> None:
    data = backup(secret, passphrase)
    assert restore(data, passphrase) == secret and secret not in data
    assert backup(secret, passphrase) != data, "salt and nonce are new each time"
    with pytest.raises(StateError):
        restore(data, passphrase + "x")


@fails_without("swarm/joining/identity.py", "salt = random(_SALT_BYTES)", "salt = bytes(_SALT_BYTES)")
@pytest.mark.usefixtures("quick")
def test_one_passphrase_gives_each_backup_another_key() -> None:
    """Else a table of guesses would serve for all backups."""
    begin = len(identity._BACKUP)
    assert len({backup(bytes(32), "correct horse")[begin : begin + identity._SALT_BYTES] for _ in range(4)}) == 4


@fails_without("swarm/joining/identity.py", " or not data.startswith(_BACKUP):", ":")
@fails_without("swarm/joining/identity.py", "if len(box) != SecretBox.NONCE_SIZE + SecretBox.MACBYTES + KEY_BYTES:")
@pytest.mark.usefixtures("quick")
def test_a_damaged_backup_is_rejected() -> None:
    data = backup(b"\x01" * 32, "correct horse")
    for position in range(len(data)):
        with pytest.raises(StateError):
            restore(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :], "correct horse")
    for wrong in (b"", data[:-1], data[:40], data + b"\0", backup(b"\x01" * 31, "correct horse"), bytes(10_000_000)):
        with pytest.raises(StateError):
            restore(wrong, "correct horse")


@pytest.mark.usefixtures("quick")
def test_a_passphrase_is_the_same_from_every_keyboard() -> None:
    data = backup(b"\x01" * 32, "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n wie Gras")
    assert restore(data, "gru\N{COMBINING DIAERESIS}n wie Gras") == b"\x01" * 32


@fails_without("swarm/joining/identity.py", "if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:")
@pytest.mark.parametrize("passphrase", ["", "seven77", "not text \udcff"])
def test_a_passphrase_that_is_too_short_or_not_text_is_rejected(passphrase: str) -> None:
    with pytest.raises(StateError):
        backup(bytes(32), passphrase)


@fails_without("swarm/joining/identity.py", "_MEMORY = 3, 256 * 1024 * 1024", "_MEMORY = 1, 8192")
def test_a_backup_needs_the_documented_memory() -> None:
    """The parameters are part of the format: with others, old backups could not be opened."""
    assert restore(EARLIER, "correct horse") == US.secret
