"""Translation of one tenant's names, ids, hosts and error messages to the cluster's, and back. No I/O."""

from __future__ import annotations

import re
from uuid import UUID

from msgspec import Struct, field

from common.errors import ErrorCode, error_name
from common.host_names import broker_host
from kraft.image.acls import WILDCARD
from kraft.image.tenants import SEPARATOR
from kraft.image.topics import TopicsImage
from kraft.records import AclPattern

LOG_DIRECTORY = "/data"
_LIKE_A_TENANT = re.compile(r"lkc-[a-z0-9]{6}")
_MASKED = ((1 << 96) - 1) << 32  # sent inward in place of other tenants' topic ids; never assigned, so a lookup fails
_MASKED_END = _MASKED + (1 << 32)


def prefix_of(tenant: str) -> str:
    """The prefix of the internal names of a tenant's resources."""
    return tenant + SEPARATOR


class ProxyAddress(Struct, frozen=True):
    """Where tenants reach brokers: names below `domain`, at `port`. Without a domain they get the brokers' own
    addresses."""

    domain: str = ""
    port: int = 0

    def of(self, broker: int, tenant: str) -> tuple[str, int] | None:
        return (broker_host(broker, tenant, self.domain), self.port) if self.domain else None


class TenantScope(Struct):
    """One request of `tenant`. `hidden` maps the ids that the handler sees to those that the client sent."""

    tenant: str
    prefix: str
    topics: TopicsImage
    proxies: ProxyAddress
    hidden: dict[UUID, UUID] = field(default_factory=dict)
    left_out: int = 0

    def follow(self, topics: TopicsImage) -> None:
        """From now on look up ids in these topics."""
        self.topics = topics

    def leave_out(self, count: int = 1) -> None:
        """Count rows of a response that were left out because they are not the tenant's."""
        self.left_out += count

    # names -------------------------------------------------------------------------------------------------

    def name_in(self, name: str | None) -> str | None:
        return None if name is None else self.prefix + name

    def name_out(self, name: str | None) -> str | None:
        """The name as the tenant knows it. Raises ForeignName. None and "" stay as they are."""
        if not name:
            return name
        if not name.startswith(self.prefix):
            raise ForeignName
        return name[len(self.prefix) :]

    def principal_in(self, principal: str) -> str:
        kind, colon, name = principal.partition(":")
        return f"{kind}:{self.prefix}{name}" if colon else principal

    def principal_out(self, principal: str) -> str:
        kind, colon, name = principal.partition(":")
        if not colon or not name.startswith(self.prefix):
            raise ForeignName
        return f"{kind}:{name[len(self.prefix) :]}"

    def resource_in(self, name: str, pattern: int) -> tuple[str, int]:
        """An ACL's resource name and pattern type; all resources of the tenant are a prefix in the cluster."""
        if name == WILDCARD and pattern == AclPattern.LITERAL:
            return self.prefix, int(AclPattern.PREFIXED)
        return (self.prefix + name if name else name), pattern

    def resource_out(self, name: str, pattern: int) -> tuple[str, int]:
        if name == self.prefix and pattern == AclPattern.PREFIXED:
            return WILDCARD, int(AclPattern.LITERAL)
        return self.name_out(name) or "", pattern

    # topic ids ---------------------------------------------------------------------------------------------

    def id_in(self, topic_id: UUID | None) -> UUID | None:
        if topic_id is None:
            return None
        topic = self.topics.get_by_id(topic_id.bytes)
        is_known = topic is not None and topic.name.startswith(self.prefix)
        if is_known or (topic is None and not _MASKED <= topic_id.int < _MASKED_END):
            return topic_id
        masked = UUID(int=_MASKED + len(self.hidden))
        self.hidden[masked] = topic_id
        return masked

    def id_out(self, topic_id: UUID | None) -> UUID | None:
        if topic_id is None:
            return None
        sent = self.hidden.get(topic_id)
        if sent is not None:
            return sent
        topic = self.topics.get_by_id(topic_id.bytes)
        if topic is not None and not topic.name.startswith(self.prefix):
            raise ForeignName
        return topic_id

    # sentences ---------------------------------------------------------------------------------------------

    def text_out(self, text: str | None, code: int | None) -> str | None:
        return None if text is None else tenant_text(text, self.prefix, code)


class ForeignName(Exception):
    """A name of another tenant in a response."""


def tenant_text(text: str, prefix: str, code: int | None) -> str:
    """`text` without the tenant's prefix, or the error code's standard message if another tenant's name may remain."""
    shown = text.replace(prefix, "")
    return standard_text(code) if _LIKE_A_TENANT.search(shown) else shown


def standard_text(code: int | None) -> str:
    """A message for the error code that names nothing."""
    return f"{error_name(ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code).replace('_', ' ').capitalize()}."
