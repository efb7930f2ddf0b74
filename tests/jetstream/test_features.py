"""Every feature works on a server of a series, or is refused in words before anything is sent: never anything else."""

from __future__ import annotations

import pytest

from natsproto.errors import UnsupportedByServer
from tests.kit.features import QUESTIONS, Feature, every_feature, world_of
from tests.kit.servers import SERIES


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("feature", every_feature(), ids=lambda one: f"{one.group}: {one.name}")
async def test_feature_works_or_is_refused(feature: Feature, series: str) -> None:
    async with world_of(series) as world:
        steps = feature.use(world)
        await anext(steps)
        world.begin()
        if world.series >= feature.since:
            await anext(steps, None)
            return
        with pytest.raises(UnsupportedByServer) as refused:
            await anext(steps, None)
        wanted = f"nats-server {feature.since[0]}.{feature.since[1]}"
        assert wanted in str(refused.value), f"does not say that it needs {wanted}: {refused.value}"
        assert [subject for subject in world.arrived() if not subject.startswith(QUESTIONS)] == []
