"""Where this broker is known to answer other than Apache Kafka, though nobody learns or does more by it."""

from __future__ import annotations

import json
from typing import Any

from tests.broker.gate_oracle.answers import Answers, compact
from tests.broker.gate_oracle.rights import NONE
from tests.broker.gate_oracle.things import ABSENT

WITHOUT_SETTINGS = frozenset({(api, "group") for api in ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs")})
"""Groups have no settings here: INVALID_REQUEST to those who might have read or changed them."""


def expected(answers: Answers, key: tuple[str, str, int], right: str) -> str:
    """What is to be answered, by what Apache Kafka answered."""
    api, label, version = key
    by_right = answers[api, label, version]
    answer, denied = by_right[right], by_right[NONE]
    if api == "AddPartitionsToTxn" and "TOPIC_AUTHORIZATION_FAILED" in answer:
        return answer.replace("UNKNOWN_TOPIC_OR_PARTITION", "OPERATION_NOT_ATTEMPTED")  # whether or not it exists
    if (api, label) in WITHOUT_SETTINGS and answer != denied:
        code = '"error_code":"INVALID_REQUEST"'
        return answer.replace('"error_code":"NONE"', code).replace('"error_code":"INVALID_CONFIG"', code)
    return answer


def comparable(key: tuple[str, str, int], answer: str) -> str:
    """What this broker answered, without what is not to be compared."""
    api, label, version = key
    if (api, label) == ("Metadata", "creating"):
        return _as_not_made_yet(answer)
    if (api, label) == ("DescribeQuorum", "metadata"):  # Apache Kafka's one node is a voter, and so no observer
        return _without_observers(answer)
    if api == "UpdateFeatures" and version < 2:  # these say which of several features it was
        return compact(json.loads(answer) | {"results": []})
    return answer


def _without_observers(answer: str) -> str:
    told: dict[str, Any] = json.loads(answer)
    for topic in told["topics"]:
        for partition in topic["partitions"]:
            partition["observers"] = []
    return compact(told)


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
