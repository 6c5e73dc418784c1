"""Changes of settings of resources that have none in the metadata, and what the refusal says."""

from __future__ import annotations

import pytest

from common.errors import ErrorCode
from tests.kraft.decisions import decide_alter_configs, decide_incremental_alter_configs
from tests.kraft.images import POLICY, with_brokers
from wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (8, "The levels of loggers are changed by IncrementalAlterConfigs alone, which their broker answers."),
        (32, "Groups have no settings here."),
        (99, "Resources of type 99 have no settings here."),
    ],
)
def test_what_has_no_settings_is_refused_in_words(kind: int, message: str) -> None:
    row = AlterConfigsRequest.AlterConfigsResource
    setting = row.AlterableConfig(name="root", value="DEBUG")
    request = AlterConfigsRequest(resources=[row(resource_type=kind, resource_name="1", configs=[setting])])
    one_row = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = one_row.AlterableConfig(name="root", config_operation=0, value="DEBUG")
    one = IncrementalAlterConfigsRequest(
        resources=[one_row(resource_type=kind, resource_name="1", configs=[change])], validate_only=False
    )
    replaced = decide_alter_configs(with_brokers(3), request, POLICY)
    changed = decide_incremental_alter_configs(with_brokers(3), one, POLICY)
    assert not replaced.records and not changed.records
    for (result,) in (replaced.reply.responses, changed.reply.responses):
        assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, message)
