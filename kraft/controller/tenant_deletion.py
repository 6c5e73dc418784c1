"""Removal of a deleted tenant in steps: keys, ACLs, quotas, topics, groups, and the tenant itself last. No I/O.

The state of a deletion is in the image, except for the groups: their brokers remove them and report it
(`kraft.controller.tenant_keys`).
"""

from __future__ import annotations

from kraft.batches import MetadataRecord
from kraft.controller.api_keys import acls_by_principal, revocation
from kraft.controller.client_quotas import quotas_to_remove
from kraft.fleet_records import RemoveClientQuotaRecord
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.image.tenants import TenantImage
from kraft.records import RemoveAclRecord, RemoveTenantRecord, RemoveTopicRecord

RECORDS_PER_STEP_MAX = 1_000
TOPICS_PER_STEP_MAX, KEYS_PER_STEP_MAX = 100, 100


def deletion_step(image: MetadataImage, tenant: TenantImage, groups_are_gone: bool) -> list[MetadataRecord]:
    """The next step of a DELETING tenant; empty while it waits for its groups to be removed."""
    records: list[MetadataRecord] = []
    keys = image.keys.of_tenant(tenant.id)[:KEYS_PER_STEP_MAX]
    if keys:
        by_principal = acls_by_principal(image, tenant.id)
        for key_id in keys:
            key = image.keys[key_id]
            records += revocation(image, key, by_principal.get(key.principal, ()))
            if len(records) >= RECORDS_PER_STEP_MAX:
                break
        return records
    acls = image.acls.of_tenant(tenant.id)[:RECORDS_PER_STEP_MAX]
    if acls:
        return [RemoveAclRecord(acl.id) for acl in acls]
    quotas = quotas_to_remove(image, tenant.id, RECORDS_PER_STEP_MAX)
    if quotas:
        return [RemoveClientQuotaRecord(entity) for entity in quotas]
    for topic in topics_of(image, tenant):
        records.append(RemoveTopicRecord(topic.topic_id, topic.name))
        if len(records) >= TOPICS_PER_STEP_MAX:
            break
    if records or not groups_are_gone:
        return records
    return [RemoveTenantRecord(tenant.id)]
