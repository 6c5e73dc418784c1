"""Where this broker is known to answer other than Apache Kafka, though nobody learns or does more by it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.broker.gate_oracle.answers import Answers, compact
from tests.broker.gate_oracle.questions import ABSENT
from tests.broker.gate_oracle.rights import NONE

TRANSACTIONAL_ID_REFUSED = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
"""To those who have no right to a transactional id. There are no transactions here for those who have."""

WITHOUT_SETTINGS = frozenset({(api, "group") for api in ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs")})
"""Groups have no settings here: INVALID_REQUEST to those who might have read or changed them."""

_FOUND = re.compile(r'"NONE","host":"text",("key":"[^"]*",)?"node_id":"number","port":"number"')
_NOT_YET = r'"COORDINATOR_NOT_AVAILABLE","host":"",\1"node_id":-1,"port":-1'


def expected(answers: Answers, key: tuple[str, str, int], right: str) -> str:
    """What is to be answered, by what Apache Kafka answered."""
    api, label, version = key
    by_right = answers[api, label, version]
    answer, denied = by_right[right], by_right[NONE]
    if (api, label) == ("Produce", "transactional"):  # to all, whatever their rights
        return denied.replace(TRANSACTIONAL_ID_REFUSED, "UNSUPPORTED_FOR_MESSAGE_FORMAT")
    if (api, label) == ("InitProducerId", "transactional") and answer != denied:
        return denied.replace(TRANSACTIONAL_ID_REFUSED, "INVALID_TRANSACTION_TIMEOUT")
    if (api, label) in WITHOUT_SETTINGS and answer != denied:
        code = '"error_code":"INVALID_REQUEST"'
        return answer.replace('"error_code":"NONE"', code).replace('"error_code":"INVALID_CONFIG"', code)
    return answer


def comparable(key: tuple[str, str, int], answer: str) -> str:
    """What this broker answered, without what is not to be compared."""
    api, label, version = key
    if (api, label) == ("Metadata", "creating"):
        return _as_not_made_yet(answer)
    if (api, label) == ("FindCoordinator", "transaction"):  # a live broker; Apache Kafka had not made its topic yet
        return _FOUND.sub(_NOT_YET, answer)
    if api == "UpdateFeatures" and version < 2:  # these say which of several features it was
        return compact(json.loads(answer) | {"results": []})
    return answer


def _as_not_made_yet(answer: str) -> str:
    """Apache Kafka answers before the topic that it creates is there, this broker after."""
    told: dict[str, Any] = json.loads(answer)
    for topic in told["topics"]:
        if topic["name"] == ABSENT and topic["error_code"] == "NONE":
            assert topic["partitions"]
            topic |= {"error_code": "UNKNOWN_TOPIC_OR_PARTITION", "partitions": []}
            if "topic_id" in topic:
                topic["topic_id"] = "none"
    told["topics"].sort(key=compact)
    return compact(told)
