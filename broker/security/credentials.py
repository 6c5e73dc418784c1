"""The SCRAM verifiers of one listener: those of users for operators, those of its keys for a tenant.

An unknown user gets a decoy (`broker.security.decoy_verifiers`), and so does a user without a verifier for the
requested mechanism. The decoy is computed at every login, so that the time does not show whether the user exists.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.security.decoy_verifiers import DecoyVerifiers, Forms, forms_of
from kraft.image.credentials import ScramCredential
from kraft.image.metadata import MetadataImage
from kraft.records import ScramMechanism


class Credentials:
    """`tenant` None: an operators' listener."""

    def __init__(self, image: Callable[[], MetadataImage], decoys: DecoyVerifiers, tenant: str | None) -> None:
        self._image = image
        self._decoys = decoys
        self._tenant = tenant

    def scram(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        found = self._found(user)
        return self._verifier(user, found, self._forms(user, found), mechanism)

    def any_of(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        found = self._found(user)
        forms = self._forms(user, found)
        mechanism = forms[0][0]
        return mechanism, self._verifier(user, found, forms, mechanism)

    def holds(self, user: str) -> bool:
        """Whether the newest image has that user."""
        return bool(self._found(user))

    def _forms(self, user: str, found: dict[ScramMechanism, ScramCredential]) -> Forms:
        drawn = self._decoys.forms(user, self._tenant)
        return forms_of(found) if found else drawn

    def _verifier(
        self, user: str, found: dict[ScramMechanism, ScramCredential], forms: Forms, mechanism: ScramMechanism
    ) -> ScramCredential:
        form = dict(forms).get(mechanism, forms[0][1])  # both mechanisms of a user have the same form
        made_up = self._decoys.verifier(user, mechanism, form)
        return found.get(mechanism, made_up)

    def _found(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        image = self._image()
        key = image.keys.get(user)
        if self._tenant is None:
            allowed = key is None
        else:
            tenant = image.tenants.get(self._tenant)
            allowed = key is not None and key.tenant == self._tenant and tenant is not None and tenant.may_log_in
        return dict(image.scram.get(user, {})) if allowed else {}
