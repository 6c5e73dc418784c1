"""What SCRAM answers for names that are nobody's, beside what it answers for users."""

from __future__ import annotations

import base64
import gc
import hmac
import re
import tracemalloc
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.security.credentials import Credentials
from broker.security.decoy_verifiers import (
    FORMS_MAX,
    KEY_ITERATIONS,
    PASSWORD_ITERATIONS,
    SALT_BYTES,
    DecoyVerifiers,
    Form,
)
from broker.security.scram import ScramExchange
from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.image.credentials import ScramCredential
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    ApiKeyRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
)
from tests.common.call_count import counted_calls

SECRET = b"the cluster's secret"
TENANT, OTHER = "lkc-aaaaaa", "lkc-bbbbbb"
SHA_256, SHA_512 = ScramMechanism
USERS = tuple(f"user-{index}" for index in range(6))
KEYS = {f"TK{letter * 14}": tenant for letter, tenant in zip("ABCD", (TENANT, TENANT, TENANT, OTHER), strict=True)}
UNKNOWN_USERS = tuple(f"unknown-{index}" for index in range(20))
KAFKA_SALT = b"1q2w3e4r5t6y7u8i9o0p1a2s3d"

Change = tuple[str, ScramMechanism, int, bytes] | tuple[str, ScramMechanism]
salts = st.one_of(st.just(KAFKA_SALT), st.sampled_from([b"\xff" * 12, b"\xff" * SALT_BYTES, b"\xff" * 64, b"salt"]))
changes = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([*USERS, *KEYS]), st.sampled_from([SHA_256, SHA_512]), st.integers(4_096, 16_384), salts
        ),
        st.tuples(st.sampled_from([*USERS, *KEYS]), st.sampled_from([SHA_256, SHA_512])),
    ),
    max_size=20,
)


def records(change: Change) -> list[MetadataRecord]:
    name, mechanism = change[:2]
    key: list[MetadataRecord] = []
    if len(change) == 2:
        if name in KEYS:
            key = [RemoveApiKeyRecord(name)]
        return [RemoveScramCredentialRecord(name, mechanism), *key]
    if name in KEYS:
        key = [ApiKeyRecord(name, KEYS[name], "", (), 0)]
    return [*key, ScramCredentialRecord(name, mechanism, change[3], b"stored", b"server", change[2])]


class Broker:
    """That follows the metadata."""

    def __init__(self, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self.decoys = DecoyVerifiers(SECRET)
        self.decoys.metadata_changed(at_once(differing(EMPTY_IMAGE, image)), image)

    def follow(self, written: Sequence[MetadataRecord]) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(written)
        self.image = delta.image()
        self.decoys.metadata_changed(delta, self.image)

    def credentials(self, owner: str | None) -> Credentials:
        return Credentials(lambda: self.image, self.decoys, owner)

    def answer(self, owner: str | None, name: str, mechanism: ScramMechanism) -> tuple[int, bytes]:
        """Iterations and salt, as the server's first message tells them."""
        exchange = ScramExchange(mechanism, self.credentials(owner).scram, b"nonce" * 4)
        said = exchange.step(f"n,,n={name},r=clientnonce".encode())
        assert isinstance(said, bytes)
        found = re.fullmatch(r"r=[^,]+,s=([^,]+),i=(\d+)", said.decode())
        assert found is not None
        return int(found[2]), base64.b64decode(found[1])


def form(answer: tuple[int, bytes]) -> Form:
    return Form.of(ScramCredential(answer[1], b"", b"", answer[0]))


def members(image: MetadataImage, owner: str | None) -> list[str]:
    everybody = [*USERS, *KEYS]
    return [name for name in everybody if name in image.scram and (KEYS[name] if name in image.keys else None) == owner]


@given(done=changes, mechanism=st.sampled_from([SHA_256, SHA_512]), owner=st.sampled_from([None, TENANT, OTHER]))
def test_a_stranger_is_answered_as_somebody_might_be(
    done: list[Change], mechanism: ScramMechanism, owner: str | None
) -> None:
    one = Broker()
    one.follow([TenantRecord(tenant, tenant, "default", 0) for tenant in (TENANT, OTHER)])
    for change in done:
        one.follow(records(change))
    other = Broker(one.image)  # which began with the metadata as they are now
    there = members(one.image, owner)
    answers = {form(one.answer(owner, name, mechanism)) for name in there}
    answers = answers or {Form(PASSWORD_ITERATIONS if owner is None else KEY_ITERATIONS, SALT_BYTES)}
    for name in (*UNKNOWN_USERS, *(name for name in (*USERS, *KEYS) if name not in there)):
        answer = one.answer(owner, name, mechanism)
        assert answer == one.answer(owner, name, mechanism) == other.answer(owner, name, mechanism)
        assert form(answer) in answers
    salt_of = {name: one.answer(owner, name, mechanism)[1] for name in UNKNOWN_USERS}
    assert len(set(salt_of.values())) == len(UNKNOWN_USERS), "each has a salt of its own"


def test_users_and_unknown_names_take_the_same_path() -> None:
    one = Broker()
    for user, mechanisms in (("both", (SHA_256, SHA_512)), ("one", (SHA_256,)), ("another", (SHA_512,))):
        for mechanism in mechanisms:
            one.follow([ScramCredentialRecord(user, mechanism, b"\xff" * 24, b"stored", b"server", 9_000)])

    one.answer(None, "first", SHA_256)  # what is kept from one to the next is made now
    for ask in (lambda name: one.answer(None, name, SHA_256), one.credentials(None).any_of):
        drawn = []
        for name in ("both", "one", "another", "nobody", "nobody-either"):
            with counted_calls(of=hmac.digest) as digests:
                ask(name)
            drawn.append(digests.calls)
        assert drawn[0] > 0 and len(set(drawn)) == 1


def crowd(broker: Broker, first: int, count: int, iterations: int) -> None:
    broker.follow(
        [
            ScramCredentialRecord(f"member-{index}", SHA_256, b"\xff" * SALT_BYTES, b"", b"", iterations)
            for index in range(first, first + count)
        ]
    )


def test_unknown_names_are_as_users_are_in_number() -> None:
    one, names = Broker(), [f"unknown-{index}" for index in range(3_000)]
    crowd(one, 0, 100, 4_096)
    crowd(one, 100, 10, 8_192)
    share = Counter(one.answer(None, name, SHA_256)[0] for name in names)
    assert set(share) == {4_096, 8_192}
    users, unknown = 10 / 110, share[8_192] / len(names)
    assert users / 2.2 < unknown < users * 2.2


def test_few_answers_change_when_users_come() -> None:
    """Nobody's while their number stays between two powers of two, and then only towards those who came."""
    one, names = Broker(), [f"unknown-{index}" for index in range(500)]

    def asked() -> dict[str, tuple[int, bytes]]:
        return {name: one.answer(None, name, SHA_256) for name in names}

    crowd(one, 0, 64, 4_096)
    crowd(one, 64, 16, 8_192)
    before = asked()
    crowd(one, 80, 15, 8_192)
    assert asked() == before
    crowd(one, 95, 1, 8_192)
    changed = {name: answer for name, answer in asked().items() if answer != before[name]}
    assert 0 < len(changed) < len(names) / 4
    for name, (iterations, salt) in changed.items():
        assert iterations == 8_192 and salt != before[name][1]


def test_salts_of_apache_kafkas_tools_have_their_like() -> None:
    one = Broker()
    one.follow([ScramCredentialRecord("ada", SHA_512, KAFKA_SALT, b"", b"", 4_096)])
    found = [one.answer(None, name, SHA_512) for name in UNKNOWN_USERS]
    assert all(iterations == 4_096 and re.fullmatch(rb"[0-9a-z]{20,26}", salt) for iterations, salt in found)


def test_what_is_imitated_is_bounded() -> None:
    one = Broker()
    for iterations in range(4_096, 4_096 + 4 * FORMS_MAX):
        crowd(one, iterations, 1, iterations)
    crowd(one, 0, 10, 9_000)
    found = {one.answer(None, f"unknown-{index}", SHA_256)[0] for index in range(3_000)}
    assert 9_000 in found and len(found) <= FORMS_MAX


def test_hosts_of_tenants_that_are_not_there_leave_nothing_behind() -> None:
    """An entry that is kept takes some hundreds of bytes."""
    one = Broker()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for index in range(2_000):
            one.decoys.forms("somebody", f"lkc-{index:06d}")
        gc.collect()  # frees the interpreter's stock of tuples as well
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20 * 2_000
