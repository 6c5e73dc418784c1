"""Every request and response class: the codec library's, and Tidelog's own for those that it lacks.

All are compiled from Apache Kafka's message schemas (Tidelog's are in `wire/schemas`). Fields are snake_case, nested
structs are attributes of the class above them (`MetadataResponse.MetadataResponseTopic`). A field that a decoded
version lacks has the schema's default; such a list is shared, so never change it in place.
"""

# Made by `python -m tests.wire.message_stubs`: do not edit.

from __future__ import annotations

from uuid import UUID

from wire.message_types.acl import *
from wire.message_types.base import *
from wire.message_types.client_quotas import *
from wire.message_types.cluster import *
from wire.message_types.configs import *
from wire.message_types.fetch import *
from wire.message_types.groups import *
from wire.message_types.metadata import *
from wire.message_types.nodes import *
from wire.message_types.offsets import *
from wire.message_types.produce import *
from wire.message_types.sasl import *
from wire.message_types.tidelog import *
from wire.message_types.topics import *
from wire.message_types.transactions import *
from wire.message_types.users import *

__all__: list[str]

def schema_uuid(raw: bytes) -> UUID: ...
def raw_uuid(value: UUID | None) -> bytes: ...
def changed(message: AnyStruct, **fields: object) -> AnyStruct: ...
