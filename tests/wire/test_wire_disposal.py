"""Large messages end in slices, whatever their shape, and what others still use of them stays."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from common.pacing import at_once
from wire.apis import APIS
from wire.codec import decode_request, encode_request
from wire.disposal import STRETCH, disposal
from wire.messages import AlterConfigsRequest

ALTER_CONFIGS, VERSION = 33, 2
_Resource = AlterConfigsRequest.AlterConfigsResource
_Config = _Resource.AlterableConfig


class _Name(str):
    """A text whose end is noticed."""


def _mark(config: Any, ended: list[int]) -> weakref.ref[Any]:
    config.name = _Name(config.name)
    return weakref.ref(config.name, lambda _: ended.append(1))


def _decoded(resources: int, configs: int) -> AlterConfigsRequest:
    asked = AlterConfigsRequest(
        resources=[
            _Resource(
                resource_type=2,
                resource_name=f"topic-{number}",
                configs=[_Config(name=f"{n}", value="1") for n in range(configs)],
            )
            for number in range(resources)
        ],
        validate_only=False,
    )
    assert ALTER_CONFIGS in APIS
    message = decode_request(encode_request(asked, VERSION, 1, "c")[4:])[1]
    assert isinstance(message, AlterConfigsRequest)
    return message


@pytest.mark.parametrize(("resources", "configs"), [(3_000, 1), (1, 3_000), (3, 1_500), (100, 100), (1_001, 20)])
def test_elements_of_a_large_message_end_a_few_at_a_time(resources: int, configs: int) -> None:
    message = _decoded(resources, configs)
    ended: list[int] = []
    refs = [_mark(config, ended) for resource in message.resources for config in resource.configs]
    work = disposal(message)
    assert work is not None
    del message
    assert not ended
    most = 0
    for _ in work:
        most = max(most, len(ended))
        ended.clear()
    assert most <= STRETCH
    assert not any(ref() for ref in refs)


def test_what_others_use_stays() -> None:
    message = _decoded(1, 2_000)
    kept = message.resources[0].configs
    work = disposal(message)
    assert work is not None
    at_once(work)
    assert [config.name for config in kept] == [str(n) for n in range(2_000)]


def test_a_small_message_needs_none() -> None:
    assert disposal(_decoded(5, 5)) is None
