"""Defences in `sapo_edge/swarm/joining/`: keys, backups, invites, codes, and the file of swarms."""

from __future__ import annotations

from tests.defences.defence import Defences

identity = Defences("sapo_edge/swarm/joining/identity.py", "tests/swarm/joining/test_identity.py")
invite = Defences("sapo_edge/swarm/joining/invite.py", "tests/swarm/joining/test_invite.py")
membership = Defences("sapo_edge/swarm/joining/membership.py", "tests/swarm/joining/test_membership.py")
durable = Defences("sapo_edge/state/durable.py", "tests/swarm/joining/test_membership.py")
code = Defences("sapo_edge/swarm/codes/code.py", "tests/swarm/codes/test_code.py")
handover = Defences("sapo_edge/swarm/codes/handover.py", "tests/swarm/codes/test_code.py")

DEFENCES = (
    identity.condition("the length of a secret", "if len(self.secret) != KEY_BYTES:", "test_keys_have_32_bytes"),
    identity.condition("the length of a public key", "if len(public_key) != KEY_BYTES:", "test_keys_have_32_bytes"),
    identity(
        "a secret is not shown", "secret: bytes = field(repr=False)", "secret: bytes", "test_a_secret_is_never_shown"
    ),
    identity.condition(
        "the length of a peer id that is decoded",
        "if len(peer_id) > MAX_PEER_ID_CHARACTERS:",
        "test_a_long_text_is_not_decoded",
    ),
    identity(
        "peer ids whose keys are remembered",
        "@lru_cache(maxsize=4096)",
        "@lru_cache(maxsize=None)",
        "test_so_many_ids_that_others_make_up_are_remembered",
    ),
    identity("a key has one peer id", " or peer_id_of(public_key) != peer_id:", ":", "test_a_key_has_exactly_one_id"),
    identity.condition(
        "the lengths of a key and a signature",
        "if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:",
        "test_malformed_keys_and_signatures_verify_nothing",
    ),
    identity(
        "a false signature verifies nothing",
        """except BadSignatureError:
        return False""",
        """except BadSignatureError:
        return True""",
        "test_a_signature_is_valid_only_for_its_key_and_data",
    ),
    identity.condition(
        "the shortest passphrase of a backup",
        "if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:",
        "test_a_passphrase_that_is_too_short_or_not_text_is_rejected",
    ),
    identity(
        "each backup has a salt of its own",
        "salt = random(_SALT_BYTES)",
        "salt = bytes(_SALT_BYTES)",
        "test_one_passphrase_gives_each_backup_another_key",
    ),
    identity(
        "a passphrase is expensive to guess",
        "_OPERATIONS, _MEMORY = 3, 256 * 1024 * 1024",
        "_OPERATIONS, _MEMORY = 1, 8192",
        "test_a_backup_needs_the_documented_memory",
    ),
    identity(
        "a file that is no backup is not decrypted",
        " or not data.startswith(_BACKUP):",
        ":",
        "test_a_damaged_backup_is_rejected",
    ),
    identity.condition(
        "the length of a backup",
        "if len(box) != SecretBox.NONCE_SIZE + SecretBox.MACBYTES + KEY_BYTES:",
        "test_a_damaged_backup_is_rejected",
    ),
    invite(
        "an invite's key is not shown",
        "key: bytes | None = field(default=None, repr=False)",
        "key: bytes | None = None",
        "test_the_key_is_in_the_line_and_not_in_the_repr",
    ),
    invite.condition(
        "the lengths of an invite's digest and key",
        "if len(self.manifest) != KEY_BYTES or (self.key is not None and len(self.key) != KEY_BYTES):",
        "test_a_digest_and_a_key_have_32_bytes",
    ),
    invite.condition(
        "an invite's name is a name",
        "if not _NAME.fullmatch(self.name):",
        "test_an_invalid_line_is_rejected_with_its_reason",
        "tests/swarm/joining/test_membership.py::test_a_damaged_file_is_reported_and_not_changed",
    ),
    invite.condition(
        "addresses in an invite",
        "if len(self.bootstrap) > MAX_ADDRESSES:",
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite(
        "an invite's addresses are addresses",
        "check_address(address)",
        "pass",
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite.condition(
        "an invite's address is of one machine",
        "if address.ip is not None and address.ip.is_unspecified:",
        "test_addresses_that_nobody_can_dial_are_rejected",
    ),
    invite(
        "a wrong address is shown without control characters",
        'shown = text[:60].encode("unicode_escape").decode("ascii")',
        "shown = text",
        "test_addresses_that_nobody_can_dial_are_rejected",
    ),
    invite.condition(
        "an invite has all of its end",
        "if not separator or len(check) < _CHECK_DIGITS:",
        "test_a_line_that_is_cut_off_anywhere_is_rejected",
    ),
    invite.condition(
        "an invite's checksum", "if check != _checksum(body):", "test_a_changed_or_missing_character_is_noticed"
    ),
    invite.condition(
        "an invite's version", "if version != str(VERSION):", "test_an_invalid_line_is_rejected_with_its_reason"
    ),
    invite(
        "an invite's fields stand once",
        "if len(values) != 1:",
        "if not values:",
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite.condition(
        "an invite's digits have one spelling",
        'if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):',
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite.condition(
        "the length of a text that may be an invite",
        "if len(text) > 2 * MAX_LINE:",
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite.condition(
        "the length of an invite", "if len(line) > MAX_LINE:", "test_an_invalid_line_is_rejected_with_its_reason"
    ),
    invite.condition(
        "an invite's characters",
        "if not line.isascii() or not line.isprintable():",
        "test_an_invalid_line_is_rejected_with_its_reason",
    ),
    invite(
        "a private swarm's id is its own",
        """if key is None:
        return manifest""",
        """if True:
        return manifest""",
        "tests/swarm/joining/test_membership.py::test_swarms_of_one_manifest_and_different_keys_are_different",
    ),
    invite(
        "a private swarm's id does not reveal its key",
        'hashlib.sha256(b"sapo-edge private swarm v1\\0" + manifest + key).digest()',
        "(manifest[:4] + key)",
        "tests/swarm/joining/test_membership.py::test_swarms_of_one_manifest_and_different_keys_are_different",
    ),
    membership(
        "the addresses of a swarm",
        "bootstrap=addresses[:MAX_ADDRESSES]",
        "bootstrap=addresses",
        "test_addresses_of_an_earlier_invite_are_kept_after_the_new_ones",
    ),
    membership(
        "swarms that are remembered",
        "(*others, swarm)[-MAX_SWARMS:]",
        "(*others, swarm)",
        "test_the_oldest_swarm_is_forgotten_when_there_are_too_many",
    ),
    membership(
        "swarms that are read",
        'body["swarms"][:MAX_SWARMS]',
        'body["swarms"]',
        "test_no_more_swarms_are_read_than_are_remembered",
    ),
    membership(
        "a swarm that was left takes its key with it",
        "tuple(swarm for swarm in self.swarms if swarm != left)",
        "self.swarms",
        "test_a_node_is_in_the_open_swarm_then_in_the_joined_one_then_in_none",
    ),
    membership(
        "the digits that name a swarm", "(len(name) >= MIN_DIGITS and ", "(", "test_swarms_are_found_by_name_or_digits"
    ),
    membership(
        "a manifest has the digest of its invite",
        " or hashlib.sha256(data).digest() != digest:",
        ":",
        "test_shipped_manifests_are_known_and_others_are_stored_and_verified",
    ),
    membership(
        "the size of a manifest that is verified",
        "len(data) > MAX_MANIFEST_BYTES or ",
        "",
        "test_a_manifest_that_is_too_large_is_not_parsed_whatever_its_digest",
    ),
    membership(
        "a manifest is verified before it is stored",
        """manifest = verify_manifest(data, digest)
        make_private_directory(self.kept)""",
        """manifest = Manifest.from_bytes(data)
        make_private_directory(self.kept)""",
        "test_shipped_manifests_are_known_and_others_are_stored_and_verified",
    ),
    durable.condition("the size of a file", "if len(data) > limit:", "test_a_damaged_file_is_reported_and_not_changed"),
    durable(
        "no more of a file is read than it may have",
        "file.read(limit + 1)",
        "file.read()",
        "test_files_are_bounded_before_they_are_read",
    ),
    code.condition("the length of a code", "if len(text) > MAX_CHARACTERS:", "test_what_is_wrong_with_a_code_is_named"),
    code(
        "the length of a text that may be a code",
        "len(text) <= MAX_CHARACTERS and ",
        "",
        "test_other_texts_are_no_codes",
    ),
    code(
        "the number of a code",
        'if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= MAX_NUMBER:',
        "if not number.isdecimal():",
        "test_what_is_wrong_with_a_code_is_named",
    ),
    code.condition("the words of a code", "if len(words) != WORDS:", "test_what_is_wrong_with_a_code_is_named"),
    code(
        "letters that a word of a code needs",
        "if len(typed) >= ENOUGH_LETTERS:",
        "if True:",
        "test_what_is_wrong_with_a_code_is_named",
    ),
    code(
        "a wrong word of a code is shown without control characters",
        "{printable(typed)}",
        "{typed}",
        "test_what_is_wrong_with_a_code_is_named",
    ),
    code(
        "a code's words are not shown",
        "words: tuple[str, ...] = field(repr=False)",
        "words: tuple[str, ...]",
        "test_the_right_code_brings_the_invite_once",
    ),
    code(
        "a code's words are drawn at random", "secrets.choice(word_list())", "word_list()[0]", "test_new_codes_differ"
    ),
    code(
        "the number is part of a code's password",
        'return str(self).encode("ascii")',
        'return "-".join(self.words).encode("ascii")',
        "test_only_the_same_code_opens",
    ),
    handover.condition(
        "the length of a point of a key exchange",
        "if len(message) != HELLO_BYTES:",
        "test_what_is_no_first_message_of_an_inviter_is_a_wrong_code",
    ),
    handover(
        "garbage in a key exchange raises nothing else",
        """except (SPAKEError, NotOnCurve, ValueError):
        return None""",
        """except ZeroDivisionError:
        return None""",
        "test_what_is_no_first_message_of_an_inviter_is_a_wrong_code",
    ),
    handover(
        "the length of a sealed invite",
        " or len(sealed) > MAX_SEALED_BYTES:",
        ":",
        "test_a_sealed_invite_that_is_too_long_is_not_opened",
    ),
    handover(
        "a receipt proves that the invite arrived",
        'self._key is not None and hmac.compare_digest(receipt, _tag(self._key, "receipt"))',
        "self._key is not None",
        "test_the_right_code_brings_the_invite_once",
    ),
    handover(
        "one tag of a key exchange is no other",
        'f"sapo-edge code v1 {purpose}".encode()',
        'b"sapo-edge code v1"',
        "test_the_right_code_brings_the_invite_once",
    ),
)
