"""AlterUserScramCredentials: verifiers of users' passwords. No I/O.

Error codes are Apache Kafka's (KIP-554, ScramControlManager). A user's changes are atomic. The request has the salted
password; the verifier derived from it is stored (RFC 5802).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from functools import partial

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.features import check_access_level
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from kraft.records import RemoveScramCredentialRecord, ScramCredentialRecord, ScramMechanism
from wire.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
NAME_CHARACTERS_MAX = 249
SECRET_BYTES_MAX = 1_024
REMOVAL_COST, VERIFIER_COST, RESULT_COST = 5, 20, 5
NAMES_PER_STEP, NAMES_PER_UNIT = 200, 2  # names that are looked at
API_KEY_ID = re.compile(r"TK[A-Z2-7]{14}")
_HASHES = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}

_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Changes = dict[str, dict[ScramMechanism, MetadataRecord]]


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, AlterUserScramCredentialsResponse]]:
    """AlterUserScramCredentials (51): one result per user in the request."""
    changes: _Changes = {}
    failures: dict[str, ProtocolError] = {}
    for deletion in request.deletions:
        changes.setdefault(deletion.name, {})
    for upsertion in request.upsertions:
        changes.setdefault(upsertion.name, {})
    yield (len(request.deletions) + len(request.upsertions)) // NAMES_PER_UNIT
    for deletion in request.deletions:
        yield REMOVAL_COST
        _take(changes, failures, deletion.name, partial(_removal, image, deletion))
    for upsertion in request.upsertions:
        yield VERIFIER_COST
        _take(changes, failures, upsertion.name, partial(_credential, upsertion))
    users = yield from _user_count(image)
    for name, of_user in changes.items():
        yield RESULT_COST
        try:
            check_access_level(image)
            adds = any(isinstance(record, ScramCredentialRecord) for record in of_user.values())
            if name not in failures and adds and name not in image.scram:
                users += 1
                if users > policy.access.users_max:
                    raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"More than {policy.access.users_max} users.")
        except ProtocolError as error:
            failures.setdefault(name, error)
    records = [r for name, of_user in changes.items() if name not in failures for r in of_user.values()]
    yield len(records)
    results = []
    for name in changes:
        results.append(_result(name, failures.get(name)))
        yield RESULT_COST
    return Decision(AlterUserScramCredentialsResponse(results=results), records)


def _user_count(image: MetadataImage) -> Work[int]:
    """Number of users with credentials, without API keys."""
    users = 0
    for number, name in enumerate(image.scram, 1):
        users += name not in image.keys
        if number % NAMES_PER_STEP == 0:
            yield NAMES_PER_STEP // NAMES_PER_UNIT
    return users


def _take(
    changes: _Changes,
    failures: dict[str, ProtocolError],
    name: str,
    make: Callable[[], ScramCredentialRecord | RemoveScramCredentialRecord],
) -> None:
    try:
        record = make()
        if record.mechanism in changes[name]:
            raise ProtocolError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request."
            )
        changes[name][record.mechanism] = record
    except ProtocolError as error:
        failures.setdefault(name, error)


def check_iterations(iterations: int) -> None:
    """Raises UNACCEPTABLE_CREDENTIAL: too few iterations make guessing fast, too many keep the brokers busy."""
    if iterations < ITERATIONS_MIN:
        raise _unacceptable(f"Too few iterations: at least {ITERATIONS_MIN} are needed.")
    if iterations > ITERATIONS_MAX:
        raise _unacceptable(f"Too many iterations: at most {ITERATIONS_MAX} are allowed.")


def mechanism_of(number: int) -> ScramMechanism:
    """Raises UNSUPPORTED_SASL_MECHANISM."""
    try:
        return ScramMechanism(number)
    except ValueError:
        raise ProtocolError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism.") from None


def _removal(image: MetadataImage, deletion: _Deletion) -> RemoveScramCredentialRecord:
    _check_name(deletion.name)
    mechanism = mechanism_of(deletion.mechanism)
    if mechanism not in image.scram.get(deletion.name, {}):
        raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist.")
    return RemoveScramCredentialRecord(deletion.name, mechanism)


def _credential(upsertion: _Upsertion) -> ScramCredentialRecord:
    _check_name(upsertion.name)
    mechanism = mechanism_of(upsertion.mechanism)
    check_iterations(upsertion.iterations)
    salt, salted = bytes(upsertion.salt or b""), bytes(upsertion.salted_password or b"")
    if not salt or not salted:
        raise _unacceptable("The salt and the salted password must not be empty.")
    if max(len(salt), len(salted)) > SECRET_BYTES_MAX:
        raise _unacceptable(f"Salt and salted password may have {SECRET_BYTES_MAX} bytes each.")
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredentialRecord(
        upsertion.name,
        mechanism,
        salt,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
        upsertion.iterations,
    )


def _check_name(name: str) -> None:
    if not name:
        raise _unacceptable("Username must not be empty.")
    if len(name) > NAME_CHARACTERS_MAX:
        raise _unacceptable(f"A user's name may have {NAME_CHARACTERS_MAX} characters.")
    if API_KEY_ID.fullmatch(name):
        raise _unacceptable("Names of this form are those of API keys.")


def _unacceptable(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def _result(name: str, error: ProtocolError | None) -> _Result:
    if error is None:
        return _Result(user=name, error_code=0, error_message=None)
    return _Result(user=name, error_code=int(error.code), error_message=error.message)
