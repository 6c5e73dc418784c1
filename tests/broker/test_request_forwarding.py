"""How long a request may be that a broker sends on to the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.forwarding import FORWARDED_BYTES_MAX, Forwarder, ForwardLimits
from common.errors import ErrorCode, ProtocolError
from tests.broker.broker_world import BrokerWorld, context
from tests.broker.tenant_lab import ALPHA, TenantLab
from tests.virtual_time import LoopClock
from wire.codec import encode_request
from wire.messages import EnvelopeRequest, IncrementalAlterConfigsRequest

_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
MIB = 1 << 20


def alteration(values: int) -> IncrementalAlterConfigsRequest:
    """One topic with as many settings of 32 KB."""
    configs = [
        _Resource.AlterableConfig(name=f"k{number}", config_operation=0, value="x" * 32_000) for number in range(values)
    ]
    resource = _Resource(resource_type=2, resource_name="t", configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


@pytest.mark.parametrize(("values", "is_sent"), [(20, True), (40, False)])
async def test_what_is_too_long_is_not_sent(values: int, is_sent: bool) -> None:
    world = BrokerWorld()
    forwarder = Forwarder(world, world, LoopClock(), ForwardLimits(request_bytes_max=MIB))
    asked = context("IncrementalAlterConfigs", 1)
    if is_sent:
        await forwarder.forward(asked, alteration(values))
    else:
        with pytest.raises(ProtocolError) as refused:
            await forwarder.forward(asked, alteration(values))
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
    answer: Any = await forwarder.serve(asked, alteration(values))
    assert (answer.responses[0].error_code == ErrorCode.POLICY_VIOLATION) is not is_sent
    assert len(world.forwarded) == 2 * is_sent


@given(st.integers(1_024, 1 << 31))
def test_an_envelope_around_the_longest_request_fits_into_a_frame(frame_bytes_max: int) -> None:
    limits = ForwardLimits.within(frame_bytes_max)
    assert 0 < limits.request_bytes_max <= FORWARDED_BYTES_MAX
    envelope = EnvelopeRequest(request_data=b"", request_principal=b"p" * 300, client_host_address=b"h" * 45)
    around = len(encode_request(envelope, 0, 1, "tidelog-broker-1"))
    assert around + limits.request_bytes_max <= frame_bytes_max


async def test_a_long_request_costs_no_other_client_the_controller(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        lab.rights = False
        wire = await lab.connect(ALPHA)
        answer = await wire.call(alteration(300), 1)
        assert answer.responses[0].error_code == ErrorCode.POLICY_VIOLATION
        assert "lkc-" not in answer.responses[0].error_message
        answer = await wire.call(alteration(1), 1)
        assert answer.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not lab.fatal
